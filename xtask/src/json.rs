//! A reader for the JSON that cargo and `sdp run --report` write.
//!
//! Just enough for xtask's own look-ups: whole documents, no streaming, numbers as `f64`. It
//! refuses what is not JSON with the position of the fault; nesting is bounded.

use std::collections::BTreeMap;

/// Deepest nesting accepted; cargo's metadata needs about ten.
const MAX_DEPTH: usize = 64;

/// A parsed value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Self>),
    Map(BTreeMap<String, Self>),
}

impl Json {
    /// Parses a whole document.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at == reader.bytes.len() { Ok(value) } else { Err(reader.fault("end")) }
    }

    /// The member `key` of an object; `Null` if there is none.
    pub(crate) fn get(&self, key: &str) -> &Self {
        match self {
            Self::Map(map) => map.get(key).unwrap_or(&Self::Null),
            _ => &Self::Null,
        }
    }

    /// The text of a string.
    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The value of a number.
    pub(crate) fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// The elements of an array; nothing for any other value.
    pub(crate) fn list(&self) -> &[Self] {
        if let Self::List(list) = self { list } else { &[] }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn fault(&self, expected: &str) -> String {
        format!("not JSON: expected {expected} at byte {}", self.at)
    }

    fn space(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn take(&mut self, literal: &str) -> bool {
        let found = self.bytes[self.at..].starts_with(literal.as_bytes());
        if found {
            self.at += literal.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth > MAX_DEPTH {
            return Err(self.fault("less nesting"));
        }
        self.space();
        match self.bytes.get(self.at) {
            Some(b'{') => self.map(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Json::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.take("null") => Ok(Json::Null),
            _ if self.take("true") => Ok(Json::Bool(true)),
            _ if self.take("false") => Ok(Json::Bool(false)),
            _ => Err(self.fault("a value")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut map = BTreeMap::new();
        self.space();
        if self.take("}") {
            return Ok(Json::Map(map));
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            if !self.take(":") {
                return Err(self.fault("a colon"));
            }
            map.insert(key, self.value(depth + 1)?);
            self.space();
            if self.take("}") {
                return Ok(Json::Map(map));
            }
            if !self.take(",") {
                return Err(self.fault("a comma or the end of the object"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut list = Vec::new();
        self.space();
        if self.take("]") {
            return Ok(Json::List(list));
        }
        loop {
            list.push(self.value(depth + 1)?);
            self.space();
            if self.take("]") {
                return Ok(Json::List(list));
            }
            if !self.take(",") {
                return Err(self.fault("a comma or the end of the array"));
            }
        }
    }

    fn number(&mut self) -> Result<Json, String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().take_while(|b| b"+-.eE0123456789".contains(b)).count();
        let text = std::str::from_utf8(&rest[..len]).unwrap_or_default();
        let number = text.parse().map_err(|_| self.fault("a number"))?;
        self.at += len;
        Ok(Json::Number(number))
    }

    fn string(&mut self) -> Result<String, String> {
        if !self.take("\"") {
            return Err(self.fault("a string"));
        }
        let mut out = Vec::new();
        loop {
            let byte = *self.bytes.get(self.at).ok_or_else(|| self.fault("the end of a string"))?;
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(out).map_err(|_| self.fault("UTF-8")),
                b'\\' => {
                    let c = self.escape()?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => out.push(byte),
            }
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.fault("an escape"))?;
        self.at += 1;
        Ok(match byte {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let high = self.hex4()?;
                if (0xd800..0xdc00).contains(&high) && self.take("\\u") {
                    let low = self.hex4()?.wrapping_sub(0xdc00) & 0x3ff;
                    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + low).unwrap_or('\u{fffd}')
                } else {
                    char::from_u32(high).unwrap_or('\u{fffd}')
                }
            }
            b'"' | b'\\' | b'/' => char::from(byte),
            _ => return Err(self.fault("an escape")),
        })
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let digits = self.bytes.get(self.at..self.at + 4).unwrap_or_default();
        let text = std::str::from_utf8(digits).unwrap_or_default();
        let value = u32::from_str_radix(text, 16).map_err(|_| self.fault("four hex digits"))?;
        self.at += 4;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_document_of_every_kind() {
        let json = Json::parse(r#" {"a": [1, -2.5e1, true, null], "b": {"c": "x\"\u00e9\n"}} "#);
        let json = json.expect("valid");
        let numbers: Vec<_> = json.get("a").list().iter().filter_map(Json::number).collect();
        assert_eq!(numbers, [1.0, -25.0]);
        assert_eq!(json.get("b").get("c").text(), Some("x\"é\n"));
        assert_eq!(json.get("absent"), &Json::Null);
    }

    #[test]
    fn joins_surrogate_pairs() {
        assert_eq!(Json::parse(r#""\ud83d\ude00""#), Ok(Json::Text("😀".to_owned())));
    }

    #[test]
    fn refuses_what_is_not_json() {
        for text in ["", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "\"\\x\"", "\"abc", "-"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
        assert!(Json::parse(&"[".repeat(100_000)).is_err());
    }
}
