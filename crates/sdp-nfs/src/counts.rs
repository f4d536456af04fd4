//! What a gateway counts.

use std::time::Duration;

use sdp_rpcrdma::rule::Rule;
use serde_json::{Value, json};

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
    /// A proxy's client sent what is no record of a call.
    ClientRecord,
    /// No server accepts a proxy's connection.
    NoServer,
    /// A gateway's server, or a proxy's client, sent half a record and nothing more.
    HalfRecord,
    /// A proxy's client does not take its replies.
    TakesNothing,
    /// A proxy lost the server when a call was under way that may not be sent twice as it is.
    Sequence,
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
            Self::ClientRecord => "client-record",
            Self::NoServer => "no-server",
            Self::HalfRecord => "half-record",
            Self::TakesNothing => "takes-nothing",
            Self::Sequence => "sequence",
        }
    }
}

/// Why a client was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The address is in no network that was named.
    NotAllowed,
    /// This process ends.
    Ending,
    /// The server did not accept a connection.
    NoServer,
    /// There is no room for one more.
    NoRoom,
    /// It had gone, or the device has failed, when it was to be accepted.
    NotAccepted,
    /// A proxy's client has a port above 1023.
    Port,
}

impl Refusal {
    /// A short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotAllowed => "not-allowed",
            Self::Ending => "ending",
            Self::NoServer => "no-server",
            Self::NoRoom => "no-room",
            Self::NotAccepted => "not-accepted",
            Self::Port => "port",
        }
    }
}

macro_rules! counts {
    ($(#[$of:meta])* $kind:ident: $($(#[$about:meta])* $name:ident,)*) => {
        $(#[$of])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $kind {
            $($(#[$about])* pub $name: u64,)*
            /// Messages that broke a rule, by [`Rule`].
            pub rules: [u64; Rule::ALL.len()],
        }

        impl $kind {
            /// Adds another's.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.rules.iter_mut().zip(other.rules).for_each(|(to, from)| *to += from);
            }

            /// Names and values, without the rules.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// A message broke a rule.
            pub const fn broke(&mut self, rule: Rule) {
                self.rules[rule as usize] += 1;
            }

            /// In JSON.
            pub fn to_json(&self) -> Value {
                to_json(self.named(), &self.rules)
            }
        }
    };
}

counts! {
    /// Counters of one connection, or of a whole gateway.
    Counts:
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

counts! {
    /// Counters of one client of a proxy, or of a whole proxy.
    LocalCounts:
    /// Calls that were sent, each time.
    calls,
    /// Of these, those that lay in memory for the server to read.
    calls_long,
    /// Of these, those with memory for the reply.
    offered,
    /// Of these, those that had been sent on a connection that was lost.
    again,
    /// Calls that the client sent again on the same connection.
    repeated,
    /// Replies in a message.
    replies_inline,
    /// Replies that the server wrote into this host's memory.
    replies_long,
    /// Calls that the server refused by an error of the transport.
    failed,
    /// Callbacks of the server.
    callbacks,
    /// Answers to callbacks that were too long, or late.
    callbacks_dropped,
    /// Calls that waited for memory for the reply.
    waited,
    /// Connections to the server.
    connects,
}

/// Places of a histogram: the last one is of half a minute and more.
const TIMES: usize = 26;

/// How long something took, in powers of two of microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times([u64; TIMES]);

impl Times {
    /// Once more.
    pub fn note(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = (u64::BITS - micros.leading_zeros()) as usize;
        self.0[place.min(TIMES - 1)] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(to, from)| *to += from);
    }
}

/// The three parts of a call's way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spans {
    /// From its arrival until it is whole.
    pub forward: Times,
    /// The server's, and the connection's to it.
    pub server: Times,
    /// From the server's reply until the device has it.
    pub reply: Times,
}

impl Spans {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.forward.add(&other.forward);
        self.server.add(&other.server);
        self.reply.add(&other.reply);
    }

    /// In JSON: for each place how often it took less than 2 to this power of microseconds, and not
    /// less than half of that.
    pub fn to_json(&self) -> Value {
        json!({ "forward": self.forward.0, "server": self.server.0, "reply": self.reply.0 })
    }
}

fn to_json(named: Vec<(&'static str, u64)>, rules: &[u64]) -> Value {
    let mut all: serde_json::Map<String, Value> =
        named.into_iter().map(|(name, count)| (name.to_string(), Value::from(count))).collect();
    let rules = Rule::ALL.iter().zip(rules).filter(|(_, count)| **count != 0);
    let rules: serde_json::Map<String, Value> =
        rules.map(|(rule, count)| (rule.name().to_string(), Value::from(*count))).collect();
    all.insert("rules".to_string(), Value::Object(rules));
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_by_powers_of_two() {
        let mut spans = Spans::default();
        for micros in [0, 1, 2, 3, 4, 1000, u64::MAX / 1000] {
            spans.server.note(Duration::from_micros(micros));
        }
        let json = spans.to_json();
        let of = |place: usize| json["server"][place].as_u64();
        assert_eq!((of(0), of(1), of(2), of(3)), (Some(1), Some(1), Some(2), Some(1)));
        assert_eq!((of(10), of(TIMES - 1)), (Some(1), Some(1)));
        let mut twice = spans.clone();
        twice.add(&spans);
        assert_eq!(twice.to_json()["server"][2], 4);
    }

    #[test]
    fn rules_are_named_when_they_were_broken() {
        let mut counts = Counts::default();
        assert_eq!(counts.to_json()["rules"], json!({}));
        counts.broke(Rule::Position);
        counts.calls = 3;
        let json = counts.to_json();
        assert_eq!((&json["rules"]["position"], &json["calls"]), (&json!(1), &json!(3)));
    }
}
