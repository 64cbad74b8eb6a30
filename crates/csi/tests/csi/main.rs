//! The directory driver and the client, over a real socket.

mod client;
mod world;
