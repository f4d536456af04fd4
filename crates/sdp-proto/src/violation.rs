//! The rules a peer can break, one variant each.
//!
//! A violation is always the peer's fault and always ends the connection: the end that receives one
//! resets. The engine's own refusals to send are [`crate::Hold`]; damaged private state is
//! [`crate::Corrupt`].

use core::fmt;

impl Violation {
    /// Whether a set-up message was refused because the peer speaks another version.
    pub const fn is_other_version(&self) -> bool {
        matches!(self, Self::HelloVersion { .. })
    }
}

macro_rules! violations {
    ($($(#[doc = $doc:literal])+ $name:ident $({ $($field:ident: $type:ty),+ })? $section:literal $text:literal)+) => {
        /// A protocol rule that the peer broke, with the values that show it.
        ///
        /// [`Violation::section`] is the section of `docs/spec/sdp.md` that states the rule.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Violation {
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nspec ", $section)]
                $name $({
                    $(
                        #[doc = concat!("`", stringify!($field), "` as found.")]
                        $field: $type
                    ),+
                })?
            ),+
        }

        impl Violation {
            /// The name of every variant, for tests that want to meet them all.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// The variant's name, as it is recorded and shown.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name)),+
                }
            }

            /// The bytes are not the message that is due: no header of their length, or another one's
            /// number. A device that reports a message twice, or before its bytes, shows such ones.
            pub const fn is_no_message(&self) -> bool {
                matches!(
                    self,
                    Self::TooShort { .. }
                        | Self::LengthMismatch { .. }
                        | Self::ReservedMid { .. }
                        | Self::MseqGap { .. }
                )
            }

            /// The section of `docs/spec/sdp.md` that states the broken rule.
            pub const fn section(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => $section),+
                }
            }
        }

        impl fmt::Display for Violation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name $({ $($field),+ })? => write!(f, $text)?),+
                }
                write!(f, " (spec {})", self.section())
            }
        }
    };
}

violations! {
    // Framing.

    /// Fewer bytes than a base header.
    TooShort { received: u32 } "2.1" "message of {received} bytes is shorter than a header"
    /// The header's length is not the number of bytes received.
    LengthMismatch { len: u32, received: u32 } "2.1" "length {len} in a message of {received} bytes"
    /// A message identifier that no revision of the protocol assigns.
    ReservedMid { mid: u8 } "2.2" "reserved message identifier {mid:#04x}"
    /// The extended header does not fit the message.
    ExtendedHeaderCut { mid: u8, len: u32 } "2.2" "message {mid:#04x} of {len} bytes cuts its extended header"
    /// Payload behind a message that carries none.
    UnexpectedPayload { mid: u8, len: u32 } "2.2" "message {mid:#04x} of {len} bytes carries payload"
    /// OOB_PRES outside a Data message.
    UrgentNotInData { mid: u8 } "2.2" "urgent byte flagged in message {mid:#04x}"
    /// OOB_PRES in a Data message without payload.
    UrgentWithoutPayload "6.1" "urgent byte flagged in an empty message"
    /// REQ_PIPE outside RdmaRdCompl and RdmaWrCompl.
    PipeHintMisplaced { mid: u8 } "2.2" "pipelined mode requested by message {mid:#04x}"
    /// Hello or HelloAck after the connection was set up.
    HelloAfterSetup { mid: u8 } "2.2" "set-up message {mid:#04x} on an open connection"
    /// Longer than the receive buffers that we announced.
    MessageTooLong { len: u32, limit: u32 } "4.6" "message of {len} bytes for buffers of {limit}"

    // Set-up.

    /// Hello or HelloAck of a length that no profile has.
    HelloLength { received: u32 } "2.3" "set-up message of {received} bytes"
    /// Set-up data that is not the expected Hello or HelloAck.
    HelloMid { mid: u8 } "2.3" "set-up data with message identifier {mid:#04x}"
    /// Flags or sequence numbers in a set-up message.
    HelloNumbered "2.3" "set-up message with flags or sequence numbers"
    /// A major version that we do not speak.
    HelloVersion { version: u8 } "2.3" "protocol version byte {version:#04x}"
    /// An address family that is neither IPv4 nor IPv6.
    HelloFamily { version: u8 } "2.3" "IP version {version} in a set-up message"
    /// An IPv4 address with other than zero bytes in front.
    HelloAddress "2.3" "IPv4 address with a prefix in a set-up message"
    /// MaxAdverts 0.
    HelloNoAdverts "2.3" "peer accepts no advertisement at all"
    /// Fewer receive buffers than the protocol needs to be free of deadlock.
    HelloFewBuffers { bufs: u16 } "4.3" "peer posts {bufs} receive buffers at set-up"
    /// A ring of a length that there is not.
    HelloRing { log2: u8 } "2.12" "peer offers a ring of 2^{log2} bytes"
    /// Receive buffers too small for the largest header and one byte.
    HelloSmallBuffers { size: u32 } "4.3" "peer posts receive buffers of {size} bytes"

    // Sequence and credit.

    /// A message is missing, repeated or out of order.
    MseqGap { expected: u32, found: u32 } "4.1" "message {found} where {expected} was due"
    /// The peer acknowledges messages that we have not sent.
    AckBeyondSent { ack: u32, sent: u32 } "4.2" "message {ack} acknowledged, {sent} was the last sent"
    /// The peer's acknowledgement went back.
    AckBackwards { ack: u32, known: u32 } "4.2" "message {ack} acknowledged after {known}"

    // Life cycle.

    /// Payload or an advertisement after DisConn.
    AfterDisConn { mid: u8 } "5.3" "message {mid:#04x} after the end of the stream"
    /// DisConn twice.
    DisConnTwice "5.3" "second end of the stream"
    /// Anything after AbortConn.
    AfterAbortConn { mid: u8 } "5.3" "message {mid:#04x} after an abort"
    /// A message other than SuspCommAck or AbortConn after SuspComm.
    AfterSuspComm { mid: u8 } "5.6" "message {mid:#04x} after a suspension"
    /// SuspComm names a service that is not ours to reconnect to.
    SuspCommService { service: u64 } "5.6" "suspension towards service {service:#018x}"
    /// SuspCommAck without SuspComm.
    SuspCommAckUnasked "5.6" "suspension acknowledged that was not asked for"

    // Modes.

    /// A ModeChange whose byte names no mode.
    ModeUnknown { byte: u8 } "2.7" "mode change byte {byte:#04x}"
    /// A transition that the tables do not have, or to the current mode.
    ModeIllegal { byte: u8 } "3.2" "mode change {byte:#04x} is not legal in this mode"
    /// Combined to Buffered with an advertisement unfinished.
    ModeWithAdvert "3.2" "buffered mode entered with an advertisement unfinished"

    // Advertisements.

    /// An advertised length of zero or above 2^31.
    AdvertLength { len: u32 } "2.6" "advertisement of {len} bytes"
    /// SrcAvail with as much payload as it advertises, or more.
    InlineTooLong { inline: u32, len: u32 } "7.2" "{inline} inline bytes of an advertisement of {len}"
    /// SrcAvail in Combined mode without payload.
    InlineMissing "7.2" "advertisement without payload in combined mode"
    /// SrcAvail in Pipelined mode with payload.
    InlineUnexpected { inline: u32 } "7.2" "advertisement with {inline} bytes of payload in pipelined mode"
    /// SrcAvail in Buffered mode.
    AdvertInBuffered "3.1" "advertisement in buffered mode"
    /// SinkAvail outside Pipelined mode.
    SinkAvailNotPipelined "3.1" "sink advertisement outside pipelined mode"
    /// More advertisements outstanding than we accept.
    TooManyAdverts { limit: u32 } "3.4" "more than {limit} advertisements outstanding"
    /// Payload while an advertisement waits for its answer.
    PayloadBesideAdvert { len: u32 } "3.5" "{len} bytes of payload beside an unanswered advertisement"
    /// RdmaRdCompl without an unfinished SrcAvail of ours.
    ReadComplUnasked { bytes: u32 } "7.3" "read of {bytes} bytes reported without an advertisement"
    /// RdmaRdCompl beyond the end of the advertisement, or of no byte.
    ReadComplLength { bytes: u32, left: u32 } "7.3" "read of {bytes} bytes reported with {left} left"
    /// RdmaWrCompl without an unfinished SinkAvail of ours.
    WriteComplUnasked { bytes: u32 } "7.5" "write of {bytes} bytes reported without an advertisement"
    /// SinkCancelAck without SinkAvailCancel.
    SinkCancelAckUnasked "7.7" "cancellation acknowledged that was not asked for"

    /// A SrcAvail behind a SendSm, before the rest that it asked for.
    AdvertBeforeRest { rest: u32 } "7.3" "advertisement with {rest} bytes of another one due as data"
    /// A report of a younger SrcAvail before the rest of an older one.
    ReadComplBeforeRest { bytes: u32, rest: u32 } "7.3" "read of {bytes} bytes reported before {rest} that are due as data"
    /// A SrcAvail during a cancellation.
    AdvertInCancel { mid: u8 } "7.4" "message {mid:#04x} during a cancellation"
    /// The stream ends, or changes lanes, with a SrcAvail unfinished.
    EndBesideAdvert { mid: u8 } "3.5" "message {mid:#04x} beside an unfinished advertisement"
    /// SinkAvail of an end that had received our SrcAvail.
    SinkAvailBesideAdvert { len: u32 } "3.6" "sink advertisement of {len} bytes behind an unanswered advertisement"
    /// SinkAvail of a buffer into which a message may not fit.
    SinkAvailShort { len: u32, limit: u32 } "7.5" "sink advertisement of {len} bytes with messages of {limit}"
    /// RdmaWrCompl beyond the end of the advertisement, or of no byte.
    WriteComplLength { bytes: u32, len: u32 } "7.5" "write of {bytes} bytes reported into a buffer of {len}"
    /// Withdrawn without a cancellation of the advertisements that it takes back.
    WithdrawnUncancelled "7.8" "advertisement withdrawn that was not cancelled"
    /// Withdrawn to a position that cannot be.
    WithdrawnPosition { position: u64, here: u64 } "7.8" "advertisement withdrawn at {position}, {here} is here"

    // Resizing.

    /// ChRcvBuf while the previous one is unanswered.
    ResizeTwice "4.7" "second resize request before the answer to the first"
    /// ChRcvBuf or ChRcvBufAck below the smallest legal buffer.
    ResizeTooSmall { size: u32 } "4.7" "receive buffers of {size} bytes"
    /// ChRcvBufAck without ChRcvBuf.
    ResizeAckUnasked { size: u32 } "4.7" "resize to {size} bytes acknowledged that was not asked for"
    /// ChRcvBufAck moved against the request, or beyond it.
    ResizeAckWrong { size: u32, asked: u32 } "4.7" "resize to {size} bytes acknowledged, {asked} were asked for"

    // Lanes.

    /// A lane message that does not parse, between peers that agreed on them.
    LaneMalformed { mid: u8 } "2.11" "malformed lane message {mid:#04x}"
}
