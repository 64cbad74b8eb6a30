//! Limits how much one plan may write. A planner whose output can be larger than its input admits each object
//! here before adding it to the plan, so that no user's object causes a plan of unlimited size.

use object::Value;

/// Memory that a stored object takes besides its JSON: keys, indexes, cache entries.
const OBJECT_OVERHEAD_BYTES: usize = 512;

/// How much a plan may write: the number of objects and their total size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub objects: usize,
    pub bytes: usize,
}

impl Allowance {
    /// The most that any plan may write. The next plan continues when these objects exist.
    pub const MAX: Allowance = Allowance { objects: 5_000, bytes: 4 << 20 };

    /// The largest allowance of at most `bytes` bytes.
    pub fn of_bytes(bytes: usize) -> Allowance {
        Allowance { bytes: bytes.min(Allowance::MAX.bytes), ..Allowance::MAX }
    }
}

/// Counts what a plan writes, and limits it.
#[derive(Clone, Debug)]
pub struct Output {
    allowance: Allowance,
    written: Written,
}

/// The size of a plan's writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub objects: usize,
    pub bytes: usize,
    /// The size of the largest object.
    pub largest_bytes: usize,
    /// Whether objects were left out because the allowance was used up.
    pub withheld: bool,
}

impl Output {
    pub fn new(allowance: Allowance) -> Output {
        Output { allowance, written: Written::default() }
    }

    pub fn written(&self) -> Written {
        self.written
    }

    /// Whether the plan left objects out.
    pub fn has_withheld(&self) -> bool {
        self.written.withheld
    }

    /// Builds an object and admits it, unless the allowance is used up. The object that reaches the limit is
    /// admitted whatever its size, so that every plan makes progress: a plan exceeds its allowance by less
    /// than one object.
    pub fn admit(&mut self, build: impl FnOnce() -> Value) -> Option<Value> {
        let Allowance { objects, bytes } = self.allowance;
        if self.written.objects >= objects || self.written.bytes >= bytes {
            self.written.withheld = true;
            return None;
        }
        let object = build();
        let bytes = size(&object);
        self.written.objects += 1;
        self.written.bytes += bytes;
        self.written.largest_bytes = self.written.largest_bytes.max(bytes);
        Some(object)
    }
}

/// The size of a stored object for all limits on growth: its JSON and the overhead of storing it.
pub fn size(object: &Value) -> usize {
    object.json_bytes() + OBJECT_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[test]
    fn a_plan_exceeds_its_allowance_by_less_than_one_object() {
        let object = || json!({"data": "x".repeat(1_000)});
        let each = size(&object());
        for (allowance, admitted) in [
            (Allowance { objects: 0, bytes: 10 * each }, 0),
            (Allowance { objects: 10, bytes: 0 }, 0),
            (Allowance { objects: 10, bytes: 1 }, 1),
            (Allowance { objects: 3, bytes: 10 * each }, 3),
            (Allowance { objects: 10, bytes: 2 * each }, 2),
            (Allowance { objects: 10, bytes: 2 * each + 1 }, 3),
        ] {
            let mut output = Output::new(allowance);
            let objects: Vec<Value> = std::iter::from_fn(|| output.admit(object)).take(100).collect();
            let largest_bytes = if admitted == 0 { 0 } else { each };
            let written = Written { objects: admitted, bytes: admitted * each, largest_bytes, withheld: true };
            assert_eq!((objects.len(), output.written()), (admitted, written), "{allowance:?}");
        }
    }
}
