//! The kubeconfig: the server's address and the user's credentials.

use base64::Engine;

/// A kubeconfig with one cluster, one user and one context.
pub fn kubeconfig(server_url: &str, ca_pem: &str, client_certificate_pem: &str, client_key_pem: &str) -> String {
    let data = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    // JSON strings are valid YAML. The URL comes from the command line and may contain any character.
    let server = object::Value::from(server_url);
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

#[cfg(test)]
mod tests {
    use super::*;
    use kube::config::{Kubeconfig, NamedCluster};

    #[test]
    fn clients_read_back_what_was_written() {
        let url = "https://[::1]:6443/a: #\"b";
        let config = Kubeconfig::from_yaml(&kubeconfig(url, "CA", "CERT", "KEY")).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("mainstay"));
        let NamedCluster { cluster: Some(cluster), .. } = &config.clusters[0] else { panic!("no cluster") };
        assert_eq!(cluster.server.as_deref(), Some(url));
        let decoded = |data: &str| base64::engine::general_purpose::STANDARD.decode(data).unwrap();
        assert_eq!(decoded(cluster.certificate_authority_data.as_ref().unwrap()), b"CA");
        let user = config.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(decoded(user.client_certificate_data.as_ref().unwrap()), b"CERT");
        let context = config.contexts[0].context.as_ref().unwrap();
        assert_eq!((context.cluster.as_str(), context.user.as_deref()), ("mainstay", Some("mainstay-admin")));
    }
}
