//! What a gateway counts.

use sdp_rpcrdma::rule::Rule;

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The client said goodbye, or its host did.
    ClientGone,
    /// The server closed its connection.
    ServerGone,
    /// The server sent what is no record, or a longer one than any is.
    ServerRecord,
    /// The client broke a rule that ends the connection.
    Broken(Rule),
    /// The client sent more than it has credits for, or the device failed.
    QueuePair,
    /// A Read, Write or Send failed: a key that leads nowhere, or a client that does not answer.
    Transfer,
    /// This process ends.
    Drained,
}

impl End {
    /// A short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientGone => "client-gone",
            Self::ServerGone => "server-gone",
            Self::ServerRecord => "server-record",
            Self::Broken(rule) => rule.name(),
            Self::QueuePair => "queue-pair",
            Self::Transfer => "transfer",
            Self::Drained => "drained",
        }
    }
}

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Counters of one connection, or of a whole gateway.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$about])* pub $name: u64,)*
            /// Messages that broke a rule, by [`Rule`].
            pub rules: [u64; Rule::ALL.len()],
        }

        impl Counts {
            /// Adds another's.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.rules.iter_mut().zip(other.rules).for_each(|(to, from)| *to += from);
            }

            /// Names and values, without the rules.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counts! {
    /// Calls that were forwarded.
    calls,
    /// Of these, those without chunks.
    calls_inline,
    /// Of these, those with arguments that were read from the client.
    calls_read,
    /// Of these, those that were read whole.
    calls_long,
    /// Replies in a message.
    replies_inline,
    /// Replies whose result was written into the client's memory.
    replies_write,
    /// Replies that were written whole into the client's memory.
    replies_long,
    /// Callbacks that were forwarded.
    callbacks,
    /// Callbacks that were too long, or too many.
    callbacks_dropped,
    /// Bytes read from clients' memory.
    bytes_read,
    /// Bytes written into clients' memory.
    bytes_written,
    /// Bytes of records from clients.
    bytes_to_server,
    /// Bytes of records from the server.
    bytes_from_server,
    /// Calls that waited for memory.
    waited,
    /// Records of the server whose XID nobody waits for.
    unknown_records,
    /// Posts that waited for room in a send queue.
    posts_waited,
}

impl Counts {
    /// A message broke a rule.
    pub const fn broke(&mut self, rule: Rule) {
        self.rules[rule as usize] += 1;
    }
}
