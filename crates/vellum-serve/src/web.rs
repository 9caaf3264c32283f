//! The page and its API.

pub mod actions;
pub mod answer;
pub mod api;
mod assets;
pub mod cursor;
pub mod events;
pub mod guard;
pub mod query;
pub mod reports;
pub mod route;
mod server;
mod text;
mod tickets;

pub use server::{WebServer, WebSettings};
