//! Whole numbers of `server.ini`: `8123`, `1024*1024`, `0x10`.

/// How deep parentheses may nest: a bound for the stack, far above what a person writes.
const DEPTH_MAX: u32 = 16;

/// Why a value is not a number; reads on after the value: "'1G' is not …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NumberError {
    #[error("is not a whole number; write for example 8123 or 1024*1024")]
    Malformed,
    #[error("is not a whole number; a comment needs a line of its own")]
    Comment,
    #[error("is beyond the numbers of 64 bits")]
    Overflow,
    #[error("divides by zero")]
    DivisionByZero,
    #[error("nests more than 16 parentheses")]
    TooDeep,
}

/// Evaluates whole numbers joined by `+ - * / %` and parentheses, with the usual precedence, in 64 bits.
///
/// A leading 0 is decimal and `/` cuts towards zero, as the original's expressions do (configuration, "2. Value
/// types"); unlike there, overflow is an error.
pub(crate) fn evaluate(text: &str) -> Result<i64, NumberError> {
    let mut parser = Parser { rest: text.trim(), depth: 0 };
    let value = parser.sum()?;
    match parser.rest.chars().next() {
        None => Ok(value),
        Some(';' | '#') => Err(NumberError::Comment),
        Some(_) => Err(NumberError::Malformed),
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: u32,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<i64, NumberError> {
        let mut value = self.product()?;
        while let Some(operator) = self.take_any(&['+', '-']) {
            let right = self.product()?;
            let result = if operator == '+' { value.checked_add(right) } else { value.checked_sub(right) };
            value = result.ok_or(NumberError::Overflow)?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<i64, NumberError> {
        let mut value = self.factor()?;
        while let Some(operator) = self.take_any(&['*', '/', '%']) {
            let right = self.factor()?;
            if operator != '*' && right == 0 {
                return Err(NumberError::DivisionByZero);
            }
            let result = match operator {
                '*' => value.checked_mul(right),
                '/' => value.checked_div(right),
                _ => value.checked_rem(right),
            };
            value = result.ok_or(NumberError::Overflow)?;
        }
        Ok(value)
    }

    fn factor(&mut self) -> Result<i64, NumberError> {
        let negative = self.take_any(&['-']).is_some();
        let value = if self.take_any(&['(']).is_some() {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Err(NumberError::TooDeep);
            }
            let value = self.sum()?;
            self.take_any(&[')']).ok_or(NumberError::Malformed)?;
            self.depth -= 1;
            value
        } else {
            self.literal()?
        };
        if negative { value.checked_neg().ok_or(NumberError::Overflow) } else { Ok(value) }
    }

    fn literal(&mut self) -> Result<i64, NumberError> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        let (digits, radix) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None => (word, 10),
        };
        if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
            return Err(NumberError::Malformed);
        }
        i64::from_str_radix(digits, radix).map_err(|_| NumberError::Overflow)
    }

    /// Takes one of `symbols` and the blanks behind it.
    fn take_any(&mut self, symbols: &[char]) -> Option<char> {
        let symbol = self.rest.chars().next().filter(|c| symbols.contains(c))?;
        self.rest = self.rest[symbol.len_utf8()..].trim_start();
        Some(symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_original_reads() {
        let cases = [
            ("8123", 8123),
            ("1024*1024", 1_048_576),
            ("1+2*3", 7),
            ("7/2", 3),
            ("-7/2", -3),
            ("7 % 4", 3),
            ("0x10", 16),
            ("010", 10),
            ("-1", -1),
            (" 512 * 1024 ", 524_288),
            ("(1+2)*3", 9),
            ("10-3-2", 5),
            ("2--1", 3),
            ("9223372036854775807", i64::MAX),
        ];
        for (input, expect) in cases {
            assert_eq!(evaluate(input), Ok(expect), "{input}");
        }
    }

    #[test]
    fn what_is_refused() {
        let deep = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
        let cases = [
            ("", NumberError::Malformed),
            ("1.5", NumberError::Malformed),
            ("1G", NumberError::Malformed),
            ("0x", NumberError::Malformed),
            ("1 2", NumberError::Malformed),
            ("(1", NumberError::Malformed),
            ("1)", NumberError::Malformed),
            ("*2", NumberError::Malformed),
            ("--1", NumberError::Malformed),
            ("８", NumberError::Malformed),
            ("true", NumberError::Malformed),
            ("3 ; c", NumberError::Comment),
            ("3 # c", NumberError::Comment),
            ("9223372036854775808", NumberError::Overflow),
            ("4611686018427387904*2", NumberError::Overflow),
            ("1/0", NumberError::DivisionByZero),
            ("1%0", NumberError::DivisionByZero),
            (&deep, NumberError::TooDeep),
        ];
        for (input, expect) in cases {
            assert_eq!(evaluate(input), Err(expect), "{}", &input[..input.len().min(20)]);
        }
    }
}
