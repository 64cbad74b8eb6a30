//! The position of a walk through a document. It is kept on the stack, and formatted only for messages.

use std::fmt;

#[derive(Clone, Copy)]
pub(super) enum Trail<'a> {
    Root,
    /// A member of a struct.
    Field(&'a Trail<'a>, &'a str),
    /// An entry of a map with free keys.
    Entry(&'a Trail<'a>, &'a str),
    Item(&'a Trail<'a>, usize),
}

impl<'a> Trail<'a> {
    fn parent(&self) -> Option<&'a Trail<'a>> {
        match self {
            Trail::Root => None,
            Trail::Field(parent, _) | Trail::Entry(parent, _) | Trail::Item(parent, _) => Some(parent),
        }
    }

    /// Returns the names of the struct fields on the path, joined by dots, as Go's type errors name a field.
    pub(super) fn fields(&self) -> String {
        let mut names = Vec::new();
        let mut at = Some(self);
        while let Some(trail) = at {
            if let Trail::Field(_, name) = trail {
                names.push(*name);
            }
            at = trail.parent();
        }
        names.reverse();
        names.join(".")
    }
}

impl fmt::Display for Trail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trail::Root => Ok(()),
            Trail::Field(Trail::Root, name) | Trail::Entry(Trail::Root, name) => f.write_str(name),
            Trail::Field(parent, name) | Trail::Entry(parent, name) => write!(f, "{parent}.{name}"),
            Trail::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}
