//! The stories: what people do, and what must come of it, whatever goes wrong meanwhile.

mod operator;
mod retention;

use crate::entropy::Rng;
use crate::world::World;
use futures::future::BoxFuture;

pub use operator::Operator;

/// A story; its errors say what was waited for in vain.
pub struct Story {
    pub name: &'static str,
    /// What it is about, in a sentence.
    pub about: &'static str,
    pub tell: fn(World, Rng) -> BoxFuture<'static, Result<(), String>>,
}

impl std::fmt::Debug for Story {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! stories {
    ($($module:ident :: $name:ident: $about:literal,)*) => {
        /// All of them.
        pub const ALL: &[Story] = &[$(Story {
            name: stringify!($name),
            about: $about,
            tell: |world, rng| Box::pin($module::$name(Operator::new(world, rng))),
        }),*];
    };
}

stories![
    retention::retained: "KEP-1847: with Retain, scaling and deleting a set leave its claims alone, and scale-up uses them again",
];

pub fn find(name: &str) -> Option<&'static Story> {
    ALL.iter().find(|story| story.name == name)
}
