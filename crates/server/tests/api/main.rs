//! The whole server through its real API, in process: requests in, answers out, on a store in memory.

mod support;

mod deletion;
mod lists;
mod watches;
mod writes;
