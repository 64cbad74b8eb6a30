mod properties;
mod provisioning;
mod scenes;
mod waiting;
pub(crate) mod world;
