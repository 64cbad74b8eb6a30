//! The tokens of a label selector.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A key, a value, or the words `in` and `notin`.
    Word(&'a str),
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
    Open,
    Close,
    Comma,
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Token::Word(word) => word,
            Token::Not => "!",
            Token::Equals => "=",
            Token::DoubleEquals => "==",
            Token::NotEquals => "!=",
            Token::GreaterThan => ">",
            Token::LessThan => "<",
            Token::Open => "(",
            Token::Close => ")",
            Token::Comma => ",",
            Token::End => "",
        })
    }
}

pub(super) struct Lexer<'a> {
    rest: &'a str,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { rest: text }
    }

    pub(super) fn next_token(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches(is_space);
        // Two-character symbols first, so that `==` is not read as two `=`.
        const SYMBOLS: [(&str, Token<'static>); 9] = [
            ("!=", Token::NotEquals),
            ("==", Token::DoubleEquals),
            ("!", Token::Not),
            ("=", Token::Equals),
            (">", Token::GreaterThan),
            ("<", Token::LessThan),
            ("(", Token::Open),
            (")", Token::Close),
            (",", Token::Comma),
        ];
        for (symbol, token) in SYMBOLS {
            if let Some(rest) = self.rest.strip_prefix(symbol) {
                self.rest = rest;
                return token;
            }
        }
        let end = self.rest.find(|char| is_space(char) || "=!(),<>".contains(char)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if word.is_empty() { Token::End } else { Token::Word(word) }
    }
}

fn is_space(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\r' | '\n')
}
