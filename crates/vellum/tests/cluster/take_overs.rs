//! Servers that are killed at random moments, again and again, while programs on three other machines work.
