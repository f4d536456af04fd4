//! Which connections are captured: by address and port, as people write it for `tcpdump`.

use std::net::IpAddr;

use sdp_stats::Endpoint;

use crate::Failure;

/// What all of has to be so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter {
    hosts: Vec<[u8; 16]>,
    ports: Vec<u16>,
}

impl Filter {
    /// Reads `host ADDRESS` and `port PORT`, joined by `and`; words may stand together in one argument.
    ///
    /// # Errors
    /// Other words are there.
    pub(super) fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let text = arguments.join(" ");
        let mut filter = Self::default();
        let mut words = text.split_whitespace();
        let bad = |word: &str| {
            Failure(format!(
                "filter: {word}: it is host ADDRESS and port PORT, joined by and; more can be \
                 chosen when the file is read (tshark -Y)"
            ))
        };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| bad(word))?;
            match word {
                "host" => filter.hosts.push(address(value).ok_or_else(|| bad(value))?),
                "port" => {
                    filter
                        .ports
                        .push(value.parse().ok().filter(|p| *p > 0).ok_or_else(|| bad(value))?);
                }
                _ => return Err(bad(word)),
            }
            match words.next() {
                None => break,
                Some("and") => {
                    // Something has to follow.
                    if words.clone().next().is_none() {
                        return Err(bad("and"));
                    }
                }
                Some(other) => return Err(bad(other)),
            }
        }
        Ok(filter)
    }

    /// Whether a connection is wanted.
    pub(super) fn has(&self, ends: [Endpoint; 2]) -> bool {
        self.hosts.iter().all(|host| ends.iter().any(|end| end.addr == *host))
            && self.ports.iter().all(|port| ends.iter().any(|end| end.port == *port))
    }
}

fn address(text: &str) -> Option<[u8; 16]> {
    Some(match text.parse().ok()? {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Filter> {
        Filter::parse(&[text.to_string()]).ok()
    }

    #[test]
    fn words_are_read() {
        assert_eq!(parse(""), Some(Filter::default()));
        let both = parse("host 127.0.0.1 and port 6379").unwrap();
        let ends = |port| [Endpoint::v4([127, 0, 0, 1], port), Endpoint::v4([127, 0, 0, 1], 50)];
        assert!(both.has(ends(6379)) && !both.has(ends(6380)));
        let six = parse("host ::1").unwrap();
        let mut one = [0; 16];
        one[15] = 1;
        assert!(six.has([Endpoint::v6(one, 1), Endpoint::v6(one, 2)]) && !six.has(ends(1)));
        assert!(parse("port 6379 and port 50").unwrap().has(ends(6379)));
        let arguments = ["port".to_string(), "50".to_string()];
        assert_eq!(Filter::parse(&arguments).ok(), parse("port 50"));
    }

    #[test]
    fn all_else_is_refused() {
        for text in [
            "port",
            "port x",
            "port 0",
            "port 70000",
            "host name",
            "tcp",
            "port 1 port 2",
            "port 1 or port 2",
            "port 1 and",
            "and port 1",
            "not port 1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
