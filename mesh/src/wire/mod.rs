//! What members say to each other, apart from what the program above says through it. Pure.

mod close;
mod codec;
mod frame;
#[cfg(test)]
pub(crate) mod fuzz;
mod hello;
mod join;
mod kind;
mod limits;

pub use close::CloseCode;
pub use codec::{CodecError, decode, encode};
pub use frame::{FrameDecoder, FrameError, encode_frame, frame_header};
pub use hello::{HELLO_BYTES_MAX, Hello, Met, PROTOCOL, PROTOCOL_MIN, meet};
pub use join::{JOIN_REPLY_BYTES_MAX, JOIN_REQUEST_BYTES_MAX, JoinReply, JoinRequest};
pub use kind::StreamKind;
pub use limits::{
    ADDRESSES_MAX, BUILD_BYTES_MAX, EXT_BYTES_MAX, EXT_ENTRIES_MAX, Ext, NAME_BYTES_MAX, REASON_BYTES_MAX, check_name,
};
