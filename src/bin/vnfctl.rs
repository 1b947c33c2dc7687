//! The client's entry point.
fn main() {}
