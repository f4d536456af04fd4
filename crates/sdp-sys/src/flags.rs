//! Flags that threads, or processes, set and look at together: one atomic word, whose bits are the
//! members of enums.
//!
//! Called by crates that keep such a word. A word may hold several kinds of flags, each kind an
//! enum ([`flag_kind`](crate::flag_kind)): members of one kind are joined by `|` to a [`Set`], and
//! members of two kinds are not, unless a caller says so ([`Mask::with`]). A word of another owner
//! does not take them at all. Whatever bits stand in a word, no member is made of them: what
//! another process writes into shared memory is looked at as bits.

use core::{
    fmt,
    marker::PhantomData,
    ops::BitOr,
    sync::atomic::{AtomicU32, Ordering},
};

/// An enum whose members are bits of a word.
pub trait Member: Copy {
    /// The word's owner: a type that tells words of different meanings apart.
    type Word;
    /// The member's bit.
    fn bit(self) -> u32;
}

/// What names bits of the words of `W`: a member, a set of one kind, or flags of several.
pub trait Mask<W>: Copy {
    /// The same as flags.
    fn mask(self) -> Flags<W>;

    /// These flags and `others`, of whatever kind.
    #[inline(always)]
    #[must_use]
    fn with(self, others: impl Mask<W>) -> Flags<W> {
        self.mask().and(others.mask())
    }
}

/// Members of one kind.
pub struct Set<E> {
    bits: u32,
    kind: PhantomData<fn() -> E>,
}

/// A word's content, or members of several kinds of it.
pub struct Flags<W> {
    bits: u32,
    word: PhantomData<fn() -> W>,
}

/// The word itself.
#[repr(transparent)]
pub struct AtomicFlags<W> {
    bits: AtomicU32,
    word: PhantomData<fn() -> W>,
}

/// Makes an enum a kind of flags of a word: its members' values are the numbers of their bits.
#[macro_export]
macro_rules! flag_kind {
    ($(#[$meta:meta])* $vis:vis enum $name:ident in $word:ty {
        $($(#[$doc:meta])* $member:ident = $bit:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        $vis enum $name { $($(#[$doc])* $member = $bit,)+ }

        impl $name {
            /// All members.
            $vis const ALL: $crate::flags::Set<Self> = Self::set(&[$(Self::$member,)+]);

            /// The member's bit in its word.
            $vis const fn bit(self) -> u32 {
                1 << self as u8
            }

            /// The member as flags of its word, to be joined with members of other kinds.
            $vis const fn flags(self) -> $crate::flags::Flags<$word> {
                Self::set(&[self]).flags()
            }

            /// The set of these members.
            $vis const fn set(mut members: &[Self]) -> $crate::flags::Set<Self> {
                let mut bits = 0;
                while let [first, rest @ ..] = members {
                    bits |= first.bit();
                    members = rest;
                }
                $crate::flags::Set::of_bits(bits)
            }
        }

        impl $crate::flags::Member for $name {
            type Word = $word;
            #[inline(always)]
            fn bit(self) -> u32 {
                self.bit()
            }
        }

        impl $crate::flags::Mask<$word> for $name {
            #[inline(always)]
            fn mask(self) -> $crate::flags::Flags<$word> {
                self.flags()
            }
        }

        impl ::core::ops::BitOr for $name {
            type Output = $crate::flags::Set<Self>;
            #[inline(always)]
            fn bitor(self, other: Self) -> $crate::flags::Set<Self> {
                Self::set(&[self, other])
            }
        }
    };
}

impl<E> Set<E> {
    /// For [`flag_kind`](crate::flag_kind), which knows which bits are members.
    #[doc(hidden)]
    #[must_use]
    pub const fn of_bits(bits: u32) -> Self {
        Self { bits, kind: PhantomData }
    }
}

impl<E: Member> Set<E> {
    /// The set as flags of its word, to be joined with members of other kinds.
    #[must_use]
    pub const fn flags(self) -> Flags<E::Word> {
        Flags { bits: self.bits, word: PhantomData }
    }
}

impl<E: Member> BitOr<E> for Set<E> {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: E) -> Self {
        Self::of_bits(self.bits | other.bit())
    }
}

impl<W> Flags<W> {
    /// No flag.
    pub const NONE: Self = Self { bits: 0, word: PhantomData };

    /// These and `others`.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self { bits: self.bits | others.bits, word: PhantomData }
    }

    /// Those that are in `others`, too.
    #[must_use]
    pub const fn within(self, others: Self) -> Self {
        Self { bits: self.bits & others.bits, word: PhantomData }
    }

    /// These without `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self { bits: self.bits & !others.bits, word: PhantomData }
    }

    /// Whether one of the flags of `mask` is set.
    #[inline(always)]
    #[must_use]
    pub fn has(self, mask: impl Mask<W>) -> bool {
        self.bits & mask.mask().bits != 0
    }

    /// Whether all flags of `mask` are set.
    #[inline(always)]
    #[must_use]
    pub fn has_all(self, mask: impl Mask<W>) -> bool {
        let wanted = mask.mask().bits;
        self.bits & wanted == wanted
    }

    /// How many flags are set.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.bits.count_ones()
    }
}

impl<W> AtomicFlags<W> {
    /// A word with no flag set.
    #[must_use]
    pub const fn new() -> Self {
        Self { bits: AtomicU32::new(0), word: PhantomData }
    }

    /// The flags that are set.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> Flags<W> {
        Flags { bits: self.bits.load(order), word: PhantomData }
    }

    /// Sets these flags, and no others.
    #[inline(always)]
    pub fn store(&self, flags: Flags<W>, order: Ordering) {
        self.bits.store(flags.bits, order);
    }

    /// Sets the flags of `mask` as well. Returns those that were set before.
    #[inline(always)]
    pub fn insert(&self, mask: impl Mask<W>, order: Ordering) -> Flags<W> {
        Flags { bits: self.bits.fetch_or(mask.mask().bits, order), word: PhantomData }
    }

    /// Takes the flags of `mask` back. Returns those that were set before.
    #[inline(always)]
    pub fn remove(&self, mask: impl Mask<W>, order: Ordering) -> Flags<W> {
        Flags { bits: self.bits.fetch_and(!mask.mask().bits, order), word: PhantomData }
    }

    /// The word, for a protocol that works on one of its bits.
    #[inline(always)]
    pub const fn word(&self) -> &AtomicU32 {
        &self.bits
    }
}

impl<W> Default for AtomicFlags<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Member> Mask<E::Word> for Set<E> {
    #[inline(always)]
    fn mask(self) -> Flags<E::Word> {
        self.flags()
    }
}

impl<W> Mask<W> for Flags<W> {
    #[inline(always)]
    fn mask(self) -> Self {
        self
    }
}

// Not derived: that would ask the same of the type that only names the word.
impl<E> Clone for Set<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Set<E> {}
impl<W> Clone for Flags<W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for Flags<W> {}
impl<W> PartialEq for Flags<W> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}
impl<W> Eq for Flags<W> {}
impl<W> fmt::Debug for Flags<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.bits)
    }
}

/// A member of one kind does not join a set of another, and no word takes another's members:
///
/// ```compile_fail,E0308
/// sdp_sys::flag_kind! { enum A in u8 { One = 0, } }
/// sdp_sys::flag_kind! { enum B in u8 { Two = 1, } }
/// let _ = A::One | B::Two;
/// ```
///
/// ```compile_fail,E0277
/// sdp_sys::flag_kind! { enum A in u8 { One = 0, } }
/// sdp_sys::flags::AtomicFlags::<u16>::new().load(std::sync::atomic::Ordering::Relaxed).has(A::One);
/// ```
///
/// The same with one kind and one word compiles:
///
/// ```
/// sdp_sys::flag_kind! { enum A in u8 { One = 0, Two = 1, } }
/// let word = sdp_sys::flags::AtomicFlags::<u8>::new();
/// assert!(!word.load(std::sync::atomic::Ordering::Relaxed).has(A::One | A::Two));
/// ```
#[cfg(doctest)]
pub struct Compiles;

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;

    enum Word {}
    crate::flag_kind! {
        enum Colour in Word {
            Red = 0,
            Green = 31,
        }
    }
    crate::flag_kind! {
        enum Shape in Word {
            Round = 1,
            Flat = 2,
        }
    }

    #[test]
    fn members_are_bits() {
        assert_eq!(Colour::ALL.flags(), Flags { bits: 1 | 1 << 31, word: PhantomData });
        assert_eq!((Colour::Red | Colour::Green).flags(), Colour::ALL.flags());
        assert_eq!((Shape::set(&[]) | Shape::Flat).flags(), Shape::Flat.flags());
        assert_eq!(Shape::Round.bit(), 2);
        assert_eq!(Colour::ALL.flags().and(Shape::ALL.flags()).count(), 4);
        let both = Colour::ALL.flags().and(Shape::ALL.flags());
        assert_eq!(both.without(Colour::ALL.flags()), both.within(Shape::ALL.flags()));
    }

    #[test]
    fn a_word_answers_what_it_held() {
        let word = AtomicFlags::<Word>::default();
        assert_eq!(word.insert(Shape::Flat, Relaxed), Flags::NONE);
        assert!(word.insert(Colour::Red | Colour::Green, Relaxed).has(Shape::ALL));
        let now = word.load(Relaxed);
        assert!(now.has(Shape::ALL) && !now.has_all(Shape::ALL) && !now.has(Shape::Round));
        assert!(now.has_all(Colour::ALL));
        assert!(word.remove(Colour::ALL.with(Shape::Round), Relaxed) == now);
        assert_eq!(word.load(Relaxed), Shape::Flat.flags());
        assert_eq!(word.word().load(Relaxed), Shape::Flat.bit());
    }

    #[test]
    fn bits_that_are_no_member_are_kept_and_mean_nothing() {
        let word = AtomicFlags::<Word>::new();
        word.word().store(!(Colour::ALL.bits | Shape::ALL.bits), Relaxed);
        let foreign = word.load(Relaxed);
        assert!(!foreign.has(Colour::ALL) && !foreign.has(Shape::ALL));
        word.insert(Shape::Round, Relaxed);
        word.remove(Shape::ALL, Relaxed);
        assert_eq!(word.load(Relaxed), foreign);
    }
}
