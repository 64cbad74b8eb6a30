//! The static token file: one token per line, as `token,user,uid,"group1,group2"`.

use super::AUTHENTICATED;
use crate::attributes::User;
use std::collections::HashMap;

/// The users of static tokens, by digest.
#[derive(Default)]
pub struct StaticTokens {
    users: HashMap<TokenDigest, User>,
}

/// SHA-256 of a token. Tokens are looked up by digest only, so that the time of a comparison reveals nothing about a
/// token.
pub type TokenDigest = [u8; 32];

pub fn digest(token: &str) -> TokenDigest {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    let mut out = TokenDigest::default();
    out.copy_from_slice(digest.as_ref());
    out
}

impl StaticTokens {
    /// Parses the file. An error is one sentence with the line number, without the token.
    pub fn parse(text: &str) -> Result<StaticTokens, String> {
        let mut users = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_end_matches('\r');
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (token, user) = parse_line(line).map_err(|why| format!("line {} of the token file {why}", at + 1))?;
            if users.insert(digest(&token), user).is_some() {
                return Err(format!("line {} of the token file repeats an earlier token", at + 1));
            }
        }
        Ok(StaticTokens { users })
    }

    pub fn user(&self, digest: &TokenDigest) -> Option<&User> {
        self.users.get(digest)
    }
}

fn parse_line(line: &str) -> Result<(String, User), String> {
    let fields = fields(line)?;
    let [token, name, uid, rest @ ..] = fields.as_slice() else {
        return Err(format!(
            "must have at least 3 columns (token, user name, user uid), but has {}: groups are optional as a quoted 4th",
            fields.len()
        ));
    };
    if token.is_empty() {
        return Err("has an empty token".to_owned());
    }
    if name.is_empty() {
        return Err("has an empty user name".to_owned());
    }
    if rest.len() > 1 {
        return Err("has more than 4 columns: put several groups in quotes, as \"group1,group2\"".to_owned());
    }
    let listed = rest.iter().flat_map(|groups| groups.split(',')).map(str::trim).filter(|group| !group.is_empty());
    let mut groups: Vec<String> = listed.map(str::to_owned).collect();
    if !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    Ok((token.clone(), User { name: name.clone(), uid: uid.clone(), groups, ..User::default() }))
}

/// The columns of one CSV line. A quoted column may contain commas, and `""` for a quote.
fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_field(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim_end().to_owned(), &rest[end..])
            }
        };
        found.push(field);
        match after.trim_start().strip_prefix(',') {
            Some(more) => rest = more,
            None if after.trim().is_empty() => return Ok(found),
            None => return Err("has text after a closing quote".to_owned()),
        }
    }
}

fn quoted_field(text: &str) -> Result<(String, &str), String> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"').ok_or("has a quote that is never closed")?;
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                field.push('"');
                rest = more;
            }
            None => return Ok((field, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_upstreams_format() {
        let text = "t1,jane,u1\n# a comment\n\nt2, joe , u2 , \"dev,ops\"\r\nt3,\"x \"\"y\"\"\",,one\n";
        let tokens = StaticTokens::parse(text).unwrap();
        let user = |token: &str| tokens.user(&digest(token)).cloned().unwrap();
        assert_eq!(user("t1").name, "jane");
        assert_eq!(user("t1").uid, "u1");
        assert_eq!(user("t1").groups, [AUTHENTICATED]);
        assert_eq!(user("t2").name, "joe");
        assert_eq!(user("t2").groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(user("t3").name, "x \"y\"");
        assert_eq!(user("t3").groups, ["one", AUTHENTICATED]);
        assert_eq!(tokens.user(&digest("t4")), None);
        assert_eq!(tokens.user(&digest("")), None);
    }

    #[test]
    fn refuses_bad_lines_in_a_sentence_without_the_token() {
        let cases = [
            ("secret,jane", "line 1 of the token file must have at least 3 columns"),
            ("\nsecret", "line 2 of the token file must have at least 3 columns"),
            (",jane,u", "line 1 of the token file has an empty token"),
            ("secret,,u", "line 1 of the token file has an empty user name"),
            ("secret,a,b,c,d", "line 1 of the token file has more than 4 columns"),
            ("secret,a,b,\"c", "line 1 of the token file has a quote that is never closed"),
            ("secret,a,b,\"c\"d", "line 1 of the token file has text after a closing quote"),
            ("secret,a,b\nsecret,c,d", "line 2 of the token file repeats an earlier token"),
        ];
        for (text, wanted) in cases {
            let error = StaticTokens::parse(text).err().unwrap_or_default();
            assert!(error.starts_with(wanted), "{text:?} gave {error:?}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
