//! What members say to each other, apart from what the program above says through it. Pure.

mod close;
mod kind;

pub use close::CloseCode;
pub use kind::StreamKind;
