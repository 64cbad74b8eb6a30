//! Random mutations that often keep an input meaningful.

/// Words that the parsers know.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "null", "true", "false", "0", "-1", "1", "9223372036854775807", "-9223372036854775808", "18446744073709551616",
    "1e400", "0.1", "1e-7", "\"\"", "{}", "[]", "[{}]", "{\"a\":", "[", "]", "}", ",", ":", "\\u0000", "\\ud800",
    "\u{0}", "\u{202e}", "metadata", "name", "namespace", "generateName", "labels", "annotations", "finalizers",
    "ownerReferences", "uid", "resourceVersion", "managedFields", "fieldsV1", "f:metadata", "k:{\"name\":\"a\"}",
    "deletionTimestamp", "deletionGracePeriodSeconds", "spec", "status", "template", "containers", "ports",
    "replicas", "selector", "matchLabels", "matchExpressions", "volumeClaimTemplates", "kind", "apiVersion", "v1",
    "apps/v1", "Pod", "ConfigMap", "StatefulSet", "$patch", "delete", "replace", "merge", "$retainKeys",
    "$setElementOrder/containers", "$deleteFromPrimitiveList/finalizers", "op", "add", "remove", "move", "copy",
    "test", "path", "from", "value", "/spec", "/metadata/labels/a", "/-", "~1", "~0", "?", "&", "=", "!=", "==", "%",
    "%2F", "%00", "%ff", "+", "..", "//", " in (", " notin (", ")", "!", "watch=1", "labelSelector=",
    "fieldSelector=metadata.name%3D", "limit=1", "continue=", "resourceVersion=0", "sendInitialEvents=true",
    "resourceVersionMatch=NotOlderThan", "fieldManager=m", "force=true", "dryRun=All", "fieldValidation=Strict",
    "timeoutSeconds=1", "propagationPolicy", "gracePeriodSeconds", "preconditions", "GET ", "POST ", "PUT ", "PATCH ",
    "DELETE ", "/api/v1/namespaces/default/", "/apis/apps/v1/", "/status", "/scale", "/eviction", "/binding",
    "/token", "configmaps", "pods", "application/json", "application/yaml", "application/merge-patch+json",
    "application/strategic-merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf", "\n--\n", "\n", "- ", "&a ", "*a", "<<: ", "!!binary ", "? ", "|\n ",
    "yes", "0644", "1_000", ".inf", "2026-01-01T00:00:00Z", "1Gi", "1e9m", "-5Ki",
];

const INPUT_BYTES_MAX: usize = 64 * 1024;

/// Mutates inputs, with random numbers from one seed.
pub struct Mutator {
    state: u64,
}

impl Mutator {
    pub fn new(seed: u64) -> Mutator {
        Mutator { state: seed }
    }

    /// A copy of one of these inputs with a few mutations. `corpus` must not be empty.
    pub fn change(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            self.step(&mut input, corpus);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn step(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        match self.below(10) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.next() as u8,
            2 => drop(input.splice(at..at, WORDS[self.below(WORDS.len())].bytes())),
            // Replaces a word by a known word.
            3 | 4 => {
                let (from, to) = word_at(input, at);
                drop(input.splice(from..to, WORDS[self.below(WORDS.len())].bytes()));
            }
            5 => {
                let end = (at + self.below(64)).min(input.len());
                drop(input.drain(at..end));
            }
            6 => {
                let end = (at + 1 + self.below(200)).min(input.len());
                let piece = input[at..end].to_vec();
                let times = 1 << self.below(6);
                drop(input.splice(at..at, piece.repeat(times)));
            }
            // Inserts a piece of another input.
            7 => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len() + 1);
                let to = (from + self.below(300)).min(other.len());
                drop(input.splice(at..at, other[from..to].iter().copied()));
            }
            // Replaces a word by a word of another input.
            8 => {
                let other = &corpus[self.below(corpus.len())];
                let (from, to) = word_at(other, self.below(other.len() + 1));
                let word = other[from..to].to_vec();
                let (from, to) = word_at(input, at);
                drop(input.splice(from..to, word));
            }
            _ => {
                let open = [&b"["[..], b"{\"a\":", b"- ", b"("][self.below(4)];
                let times = 1 << self.below(9);
                drop(input.splice(at..at, open.repeat(times)));
            }
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mix = self.state;
        mix = (mix ^ (mix >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mix = (mix ^ (mix >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mix ^ (mix >> 31)
    }
}

/// The bounds of the word at a position: letters, digits and `-_.$~`.
fn word_at(input: &[u8], at: usize) -> (usize, usize) {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.$~".contains(byte);
    let from = input[..at].iter().rposition(|byte| !is_word(byte)).map_or(0, |gap| gap + 1);
    let to = input[at..].iter().position(|byte| !is_word(byte)).map_or(input.len(), |gap| at + gap);
    (from, to)
}
