//! Scenarios by their ids in the specification, and properties.

mod world;

mod creation;
mod history;
mod properties;
mod retention;
mod scaling;
mod total;
mod updates;
