//! Scenarios by their ids in the specification, and properties.

mod world;

mod creation;
