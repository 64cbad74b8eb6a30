//! The file that tells kubectl where the server is and who the user is.

use base64::Engine;

/// A kubeconfig with one cluster, one user and one context, all in PEM taken from the arguments.
pub fn kubeconfig(server_url: &str, ca_pem: &str, client_certificate_pem: &str, client_key_pem: &str) -> String {
    let data = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    // JSON strings are YAML strings; a URL from the command line may hold anything.
    let server = serde_json::Value::from(server_url);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: mainstay
  cluster:
    server: {server}
    certificate-authority-data: {}
users:
- name: mainstay-admin
  user:
    client-certificate-data: {}
    client-key-data: {}
contexts:
- name: mainstay
  context:
    cluster: mainstay
    user: mainstay-admin
current-context: mainstay
preferences: {{}}
",
        data(ca_pem),
        data(client_certificate_pem),
        data(client_key_pem)
    )
}
