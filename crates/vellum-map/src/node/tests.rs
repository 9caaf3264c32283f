//! Tests of a decoder that meets hostile bytes.
