//! Impersonation: requests of `kubectl --as`, which need the verb `impersonate`.

use super::{AUTHENTICATED, service_account_groups, service_account_name};
use crate::attributes::{Attributes, User};
use http::HeaderMap;
use object::Status;
use std::collections::BTreeMap;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The impersonated user, or `None` without impersonation headers. `allow` checks a permission of the caller and
/// returns the refusal.
pub fn impersonate(
    headers: &HeaderMap,
    caller: &User,
    allow: &dyn Fn(&User, &Attributes) -> Result<(), Status>,
) -> Result<Option<User>, Status> {
    let Some(asked) = Asked::read(headers)? else { return Ok(None) };
    for attributes in asked.needs() {
        allow(caller, &attributes)?;
    }
    Ok(Some(asked.user()))
}

/// The content of the impersonation headers.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

impl Asked {
    fn read(headers: &HeaderMap) -> Result<Option<Asked>, Status> {
        let mut asked = Asked {
            user: texts(headers, USER)?.into_iter().next().unwrap_or_default(),
            groups: texts(headers, GROUP)?,
            uid: texts(headers, UID)?.into_iter().next().unwrap_or_default(),
            extra: BTreeMap::new(),
        };
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(EXTRA_PREFIX) {
                asked.extra.insert(percent_decoded(key), texts(headers, name.as_str())?);
            }
        }
        if !asked.user.is_empty() {
            return Ok(Some(asked));
        }
        if asked == Asked::default() {
            return Ok(None);
        }
        Err(Status::bad_request("requested groups, a uid or extra fields without impersonating a user"))
    }

    /// The permissions that the caller needs.
    fn needs(&self) -> Vec<Attributes> {
        let impersonate = |group: &str, resource: &str, name: &str| Attributes {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        let mut needs = Vec::new();
        match service_account(&self.user) {
            Some((namespace, name)) => {
                needs.push(Attributes { namespace: namespace.to_owned(), ..impersonate("", "serviceaccounts", name) })
            }
            None => needs.push(impersonate("", "users", &self.user)),
        }
        needs.extend(self.groups.iter().map(|group| impersonate("", "groups", group)));
        if !self.uid.is_empty() {
            needs.push(impersonate(AUTHENTICATION_GROUP, "uids", &self.uid));
        }
        for (key, values) in &self.extra {
            needs.extend(values.iter().map(|value| Attributes {
                subresource: key.clone(),
                ..impersonate(AUTHENTICATION_GROUP, "userextras", value)
            }));
        }
        needs
    }

    fn user(self) -> User {
        let mut groups = self.groups;
        if let Some((namespace, _)) = service_account(&self.user)
            && groups.is_empty()
        {
            groups = service_account_groups(namespace);
        }
        let has = |wanted: &str| groups.iter().any(|group| group == wanted);
        if self.user == ANONYMOUS {
            if !has(UNAUTHENTICATED) {
                groups.push(UNAUTHENTICATED.to_owned());
            }
        } else if !has(AUTHENTICATED) && !has(UNAUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        User { name: self.user, uid: self.uid, groups, extra: self.extra }
    }
}

/// Namespace and name of a ServiceAccount, if `user` is one.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let fits = object::name::label(namespace).is_empty() && object::name::subdomain(name).is_empty();
    debug_assert!(!fits || service_account_name(namespace, name) == user);
    fits.then_some((namespace, name))
}

fn texts(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Status> {
    let read = |value: &http::HeaderValue| {
        std::str::from_utf8(value.as_bytes())
            .map(str::to_owned)
            .map_err(|_| Status::bad_request(format!("the header {name} is not UTF-8 text")))
    };
    headers.get_all(name).iter().map(read).collect()
}

/// Decodes percent-encoding, which clients use for characters that are invalid in header names. Invalid encoding is
/// kept unchanged.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = after.get(..2).filter(|pair| pair.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|pair| std::str::from_utf8(pair).ok());
        let Some(byte) = digits.and_then(|pair| u8::from_str_radix(pair, 16).ok()) else { return text.to_owned() };
        bytes.push(byte);
        rest = &after[2..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use std::cell::RefCell;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    /// The resulting user, and the checked permissions.
    fn ask(pairs: &[(&str, &str)]) -> (Option<User>, Vec<String>) {
        let needs = RefCell::new(Vec::new());
        let allow = |_: &User, needed: &Attributes| {
            let Attributes { verb, group, resource, subresource, namespace, name, .. } = needed;
            needs.borrow_mut().push(format!("{verb} {group}/{resource}/{subresource} {namespace}/{name}"));
            Ok(())
        };
        let user = impersonate(&headers(pairs), &User::default(), &allow).unwrap();
        (user, needs.into_inner())
    }

    #[test]
    fn asks_for_each_part_and_completes_the_groups() {
        assert_eq!(ask(&[("Accept", "*/*")]), (None, vec![]));

        let (user, needs) = ask(&[("Impersonate-User", "jane")]);
        assert_eq!(user.unwrap().groups, [AUTHENTICATED]);
        assert_eq!(needs, ["impersonate /users/ /jane"]);

        let (user, needs) = ask(&[
            ("Impersonate-User", "jane"),
            ("Impersonate-Group", "dev"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Extra-Example.com%2fScope", "a"),
        ]);
        let user = user.unwrap();
        assert_eq!(user.groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(user.uid, "7");
        assert_eq!(user.extra["example.com/scope"], ["a"]);
        let all = [
            "impersonate /users/ /jane",
            "impersonate /groups/ /dev",
            "impersonate /groups/ /ops",
            "impersonate authentication.k8s.io/uids/ /7",
            "impersonate authentication.k8s.io/userextras/example.com/scope /a",
        ];
        assert_eq!(needs, all);

        let (user, needs) = ask(&[("Impersonate-User", "system:serviceaccount:ns:web")]);
        assert_eq!(user.unwrap().groups, ["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED]);
        assert_eq!(needs, ["impersonate /serviceaccounts/ ns/web"]);

        let (user, _) = ask(&[("Impersonate-User", ANONYMOUS)]);
        assert_eq!(user.unwrap(), User::anonymous());
    }

    #[test]
    fn refuses_groups_without_a_user_and_what_is_not_allowed() {
        let alone = impersonate(&headers(&[("Impersonate-Group", "dev")]), &User::default(), &|_, _| Ok(()));
        assert_eq!(alone.unwrap_err().code, 400);
        let no = |_: &User, needed: &Attributes| match needed.resource.as_str() {
            "groups" => Err(Status::forbidden("", "groups", &needed.name, "no")),
            _ => Ok(()),
        };
        let asked = headers(&[("Impersonate-User", "jane"), ("Impersonate-Group", "system:masters")]);
        assert_eq!(impersonate(&asked, &User::default(), &no).unwrap_err().code, 403);
        let broken = headers(&[("Impersonate-User", "j\u{ff}")]);
        assert!(impersonate(&broken, &User::default(), &|_, _| Ok(())).is_ok());
    }

    #[test]
    fn decoding_never_fails() {
        let cases = [("a%2fb", "a/b"), ("100%", "100%"), ("%zz", "%zz"), ("%ff", "%ff"), ("%+1", "%+1")];
        for (from, to) in cases {
            assert_eq!(percent_decoded(from), to);
        }
    }
}
