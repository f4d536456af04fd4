//! An end's statements about itself.

/// What an end wants for its inbound half from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Either lane.
    Open,
    /// The kernel lane, for good.
    Carrier,
    /// The same, because its last descriptor is being closed: no process reads it any more.
    Closed,
    /// The same, and it never uses the link again: all that was unread is in the kernel's stream,
    /// or was never there. The other end may forget the link.
    PassedOn,
}

/// An end's statement about a reset of its carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetNote {
    /// Nothing.
    None,
    /// It resets on purpose, or was cut off: the cause is not unread wake bytes.
    Resets,
    /// Its process is about to become an image that closes it, without another word of the library.
    Leaves,
}

/// The words of one end. Its own process writes them; the other end reads.
pub trait EndWords: Copy {
    /// Whether it is attached.
    fn is_attached(self) -> bool;
    /// Says that it is. Before this nothing of the end means anything.
    fn attach(self);

    /// Its intent. An unknown value is [`Intent::Carrier`].
    fn intent(self) -> Intent;
    /// Whether it wants nothing in particular ([`Intent::Open`]).
    fn is_open(self) -> bool {
        self.intent() == Intent::Open
    }
    /// States its intent.
    fn intend(self, intent: Intent);
    /// From [`Intent::Open`] to [`Intent::Closed`], under the gate of its inbound half: a producer
    /// that holds the gate and does not see it signals before the close. False when it had another
    /// one.
    fn close(self) -> bool;

    /// Its statement about a reset. An unknown value is [`ResetNote::Resets`].
    fn reset_note(self) -> ResetNote;
    /// Says it.
    fn note_reset(self, note: ResetNote);
    /// Says [`ResetNote::Leaves`], unless something was said before.
    fn note_leaving(self);

    /// CPU on which it last ran, plus one; 0 unknown. A hint for spinning.
    fn cpu(self) -> u32;
    /// Notes the CPU, with a store only if it changed.
    fn note_cpu(self, cpu: u32);

    /// Number of its carrier in its process, plus one; 0 unknown. A hint, verified by its user.
    fn socket(self) -> u32;
    /// Says so.
    fn note_socket(self, number_plus_one: u32);
}
