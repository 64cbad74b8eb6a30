//! The initial list of a watch: read page by page at one revision, at the client's speed. Objects that were not sent
//! yet are not kept in memory.

use super::Call;
use super::read::{Selection, read_page};
use crate::request::ListOptions;
use object::Status;
use std::sync::Arc;
use store::{Range, Record, Store};

const PAGE_RECORDS: usize = 500;
/// Limit of the bytes of read but unsent versions that one watch may keep in memory.
const UNTOLD_BYTES_MAX: usize = 1024 * 1024;

pub struct InitialList {
    pub revision: u64,
    page: std::vec::IntoIter<Arc<Record>>,
    /// The last key that was read, while others may follow.
    after: Option<Arc<str>>,
}

impl InitialList {
    /// Reads the current state.
    pub fn read(call: &Call<'_>, options: &ListOptions, selection: &Selection) -> Result<InitialList, Status> {
        let now = ListOptions { limit: 0, resource_version: None, continue_token: None, ..options.clone() };
        // Listing all keys is cheap and usually gives everything. Objects beyond the limit are read again later.
        let found = read_page(call, &now, selection)?;
        let mut list = InitialList { revision: found.revision, page: Vec::new().into_iter(), after: None };
        list.keep(found.records, None);
        Ok(list)
    }

    /// The next object, or `None` at the end. Fails if the revision was compacted meanwhile.
    pub fn next(
        &mut self,
        store: &dyn Store,
        prefix: &str,
        selection: &Selection,
    ) -> Result<Option<Arc<Record>>, store::Error> {
        loop {
            if let Some(record) = self.page.next() {
                return Ok(Some(record));
            }
            let Some(after) = self.after.take() else { return Ok(None) };
            let range = Range { prefix, after: Some(&after), limit: PAGE_RECORDS, at: Some(self.revision) };
            let mut found = store.list(range)?;
            let last = found.records.last().filter(|_| found.more).map(|record| record.key.clone());
            found.records.retain(|record| selection.takes(record));
            self.keep(found.records, last);
        }
    }

    /// Keeps a page of these records, and the key to continue after: the last one of the page, or the last one that
    /// was read.
    fn keep(&mut self, mut records: Vec<Arc<Record>>, looked_at: Option<Arc<str>>) {
        let count = count_within_limit(records.iter().map(|record| record.value.len())).min(PAGE_RECORDS);
        self.after = looked_at;
        if count < records.len() {
            records.truncate(count);
            records.shrink_to_fit();
            self.after = records.last().map(|record| record.key.clone());
        }
        self.page = records.into_iter();
    }
}

/// How many records of these sizes may be kept until the client reads them; at least one.
pub fn count_within_limit(sizes: impl Iterator<Item = usize>) -> usize {
    let mut total = 0;
    let within = sizes.take_while(|size| {
        total += size;
        total <= UNTOLD_BYTES_MAX
    });
    within.count().max(1)
}
