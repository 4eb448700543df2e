//! Code without its comments and strings, so that a rule about code is not broken by prose about it.

/// `source` with every comment, string and character literal replaced by spaces; lines stay where they are.
pub(super) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = match prose_length(rest, code.chars().last()) {
            0 => {
                code.push(first);
                first.len_utf8()
            }
            length => {
                let blank = |c| if c == '\n' { '\n' } else { ' ' };
                code.extend(rest[..length].chars().map(blank));
                length
            }
        };
        rest = &rest[length..];
    }
    code
}

/// How many bytes at the start of `rest` are a comment or a literal; 0 if code continues.
fn prose_length(rest: &str, before: Option<char>) -> usize {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match rest.as_bytes() {
        [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment_length(rest),
        [b'"', ..] => escaped_length(rest, '"'),
        [b'r', b'"' | b'#', ..] if !in_word => raw_string_length(rest, 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !in_word => raw_string_length(rest, 2),
        [b'\'', b'\\', ..] => escaped_length(rest, '\''),
        [b'\'', ..] => char_length(rest),
        _ => 0,
    }
}

/// Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let step = match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (1, 2),
            [b'*', b'/', ..] => (-1, 2),
            _ => (0, 1),
        };
        depth += step.0;
        at += step.1;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// A literal that ends at the first `quote` without a backslash before it.
fn escaped_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `r"…"`, `br"…"`, `cr"…"`, and the same with `#`, after a prefix of `prefix` letters; 0 for a raw identifier such as
/// `r#type`.
fn raw_string_length(rest: &str, prefix: usize) -> usize {
    let hashes = rest[prefix..].bytes().take_while(|&byte| byte == b'#').count();
    let opening = prefix + hashes;
    if !rest[opening..].starts_with('"') {
        return 0;
    }
    let closing = format!("\"{}", "#".repeat(hashes));
    let body = &rest[opening + 1..];
    body.find(&closing).map_or(rest.len(), |at| opening + 1 + at + closing.len())
}

/// `'x'`; 0 for a lifetime.
fn char_length(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(2);
    match chars.next() {
        Some((at, '\'')) => at + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of `source`, after checking that nothing moved.
    fn left(source: &str) -> String {
        let code = code_only(source);
        assert_eq!(code.chars().count(), source.chars().count());
        assert_eq!(code.lines().count(), source.lines().count());
        code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_blank_and_may_nest() {
        assert_eq!(left("a // b\nc /* d /* e */ f */ g"), "a c g");
    }

    #[test]
    fn strings_are_blank_even_with_escapes_and_raw() {
        assert_eq!(left(r#"f("x\"y"); g"#), "f( ); g");
        assert_eq!(left("f(r#\"x \" y\"#); g"), "f( ); g");
    }

    #[test]
    fn raw_strings_of_bytes_and_for_c_end_at_a_quote_after_a_backslash() {
        assert_eq!(left(r#"f(br"\"); g"#), "f( ); g");
        assert_eq!(left("f(cr#\"x \" y\"#, br##\"\"#\"##); g"), "f( , ); g");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_stay_code() {
        let source = "fn f<'a>(r#in: &'a u8)";
        assert_eq!(left(source), source);
    }

    #[test]
    fn character_literals_are_blank() {
        assert_eq!(left(r#"['"', '\'', 'é'] x"#), "[ , , ] x");
    }
}
