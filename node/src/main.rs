//! Parse, run, print the error, exit with its code.

fn main() {}
