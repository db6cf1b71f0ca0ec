//! The tools of a device whose broker is elsewhere: a door sends the decoded call to the broker's device and brings its
//! answer back. On the broker's own device it is a function call.

mod calls;
mod door;
mod gather;
mod here;
mod patience;
mod pins;
mod protocol;
mod serve;
mod words;

pub use door::Forwarding;
pub use serve::Doors;

#[cfg(test)]
mod tests;
