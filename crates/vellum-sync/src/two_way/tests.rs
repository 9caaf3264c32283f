//! Two-way runs of real directories, and a model that knows every version that was ever written.

mod model;
mod small;
mod world;
