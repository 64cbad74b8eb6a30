//! The rules of `metadata` that all kinds share.
