//! Protobuf as far as the plain case needs it: varints and length-delimited fields.

/// RocketMQ's `Code.OK`.
const OK: u64 = 20_000;

/// What a field holds.
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn number(self) -> Option<u64> {
        match self {
            Value::Number(number) => Some(number),
            Value::Bytes(_) => None,
        }
    }

    /// Of an enum or a field of 32 bits, neither negative nor larger than it may be.
    pub fn small_number(self) -> Option<u64> {
        self.number().filter(|number| i32::try_from(*number).is_ok())
    }

    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            Value::Number(_) => None,
        }
    }
}

/// The fields of a message in their order.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Fields { rest: message }
    }

    /// The next field; the outer `None` is an error or a wire type that no plain message has, the inner one the end.
    pub fn next(&mut self) -> Option<Option<(u32, Value<'a>)>> {
        if self.rest.is_empty() {
            return Some(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let size = usize::try_from(self.varint()?).ok()?;
                if size > self.rest.len() {
                    return None;
                }
                let (bytes, rest) = self.rest.split_at(size);
                self.rest = rest;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        Some(Some((number, value)))
    }

    /// None for one that is longer than its value needs: readers of protobuf differ in how long it may be.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (index, byte) in self.rest.iter().take(10).enumerate() {
            if (index == 9 && *byte > 1) || (index > 0 && *byte == 0) {
                return None;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Some(value);
            }
        }
        None
    }
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// What comes before the bytes of a field.
pub fn put_head(out: &mut Vec<u8>, field: u32, size: usize) {
    put_varint(out, u64::from(field << 3 | 2));
    put_varint(out, size as u64);
}

pub fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_head(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// A number that is left out when it is zero.
pub fn put_number(out: &mut Vec<u8>, field: u32, value: u64) {
    if value > 0 {
        put_varint(out, u64::from(field << 3));
        put_varint(out, value);
    }
}

/// `Status { code: OK, message: "OK" }`.
pub fn ok_status() -> Vec<u8> {
    let mut status = Vec::with_capacity(8);
    put_number(&mut status, 1, OK);
    put_bytes(&mut status, 2, b"OK");
    status
}

/// The name of a `Resource` that has nothing else.
pub fn resource_name(resource: &[u8]) -> Option<&[u8]> {
    let mut name: Option<&[u8]> = None;
    let mut fields = Fields::of(resource);
    while let Some((number, value)) = fields.next()? {
        if number != 2 || name.is_some() {
            return None;
        }
        name = Some(value.bytes()?);
    }
    name
}

/// The text, unless it is no UTF-8 or holds one of U+0000..U+001F, U+007F..U+009F.
pub fn plain_text(bytes: &[u8]) -> Option<&str> {
    if bytes.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        // SAFETY: printable ASCII is UTF-8
        return Some(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    let text = std::str::from_utf8(bytes).ok()?;
    if text.chars().any(char::is_control) {
        return None;
    }
    Some(text)
}

/// The text, unless it is anything but printable ASCII with something else than spaces.
pub fn plain_label(bytes: &[u8]) -> Option<&str> {
    let is_plain = bytes.iter().all(|byte| (0x20..0x7f).contains(byte)) && bytes.iter().any(|byte| *byte != b' ');
    if is_plain {
        plain_text(bytes)
    } else {
        None
    }
}
