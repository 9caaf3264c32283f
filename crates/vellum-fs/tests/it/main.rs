//! Tests of vellum-fs.
