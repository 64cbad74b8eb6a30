//! What every write does to an object before its kind's own rules: identity, generations, what is carried over from the old.
