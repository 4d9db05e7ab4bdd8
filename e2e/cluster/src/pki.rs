//! Keys, certificates and tokens of the local cluster. Every cluster gets its own.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use harness::{files::hex, node_id::NodeId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use super::{clients::ADMIN, network};

/// The tokens of the API server's clients.
pub struct Tokens {
    /// The token of [`ADMIN`].
    pub admin: String,
    /// The tokens of the nodes' kubelets.
    pub nodes: Vec<(NodeId, String)>,
}

/// The content of a certificate.
struct Leaf<'a> {
    /// The name of its files, without extension.
    file: &'a str,
    common_name: &'a str,
    dns_names: &'a [&'a str],
    /// Valid in addition to loopback.
    addresses: &'a [Ipv4Addr],
    usage: ExtendedKeyUsagePurpose,
}

/// Writes to `dir`: `ca.crt`; `apiserver.*`, a serving certificate; for each node `NAME.*`, its kubelet's serving certificate;
/// `kubelet-client.*`, the API server's client certificate for kubelets; `service-account.key` and `.pub`; `tokens.csv`.
pub fn write(dir: &Path, nodes: impl Iterator<Item = NodeId>) -> Result<Tokens> {
    fs::create_dir_all(dir)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "gpu-operator-e2e");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca = params.self_signed(&key)?;
    fs::write(dir.join("ca.crt"), ca.pem())?;
    let issuer = Issuer::new(params, key);

    let api_server = Leaf {
        file: "apiserver",
        common_name: "kube-apiserver",
        dns_names: &["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"],
        addresses: &[network::CONTROL_PLANE, network::API_SERVICE],
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    };
    api_server.write(dir, &issuer)?;
    let kubelet_client = Leaf {
        file: "kubelet-client",
        dns_names: &[],
        addresses: &[],
        usage: ExtendedKeyUsagePurpose::ClientAuth,
        ..api_server
    };
    kubelet_client.write(dir, &issuer)?;
    let service_accounts = KeyPair::generate()?;
    fs::write(dir.join("service-account.pub"), service_accounts.public_key_pem())?;
    secret(&dir.join("service-account.key"), &service_accounts.serialize_pem())?;

    let mut tokens = Tokens { admin: random()?, nodes: Vec::new() };
    let mut table = format!("{},{ADMIN},{ADMIN},\"system:masters\"\n", tokens.admin);
    for node in nodes {
        let (name, token) = (node.name(), random()?);
        let kubelet = Leaf {
            file: &name,
            common_name: &name,
            dns_names: &[&name],
            addresses: &[node.address()],
            usage: ExtendedKeyUsagePurpose::ServerAuth,
        };
        kubelet.write(dir, &issuer)?;
        writeln!(table, "{token},system:node:{name},{name},\"system:nodes\"")?;
        tokens.nodes.push((node, token));
    }
    secret(&dir.join("tokens.csv"), &table)?;
    Ok(tokens)
}

impl Leaf<'_> {
    /// Creates a key, and writes it and its certificate to `dir`.
    fn write(&self, dir: &Path, issuer: &Issuer<'_, KeyPair>) -> Result<()> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = self.dns_names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names)?;
        let addresses = [&[Ipv4Addr::LOCALHOST], self.addresses].concat();
        params.subject_alt_names.extend(addresses.into_iter().map(|address| SanType::IpAddress(IpAddr::V4(address))));
        params.distinguished_name.push(DnType::CommonName, self.common_name);
        params.extended_key_usages = vec![self.usage.clone()];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, issuer)?;
        fs::write(dir.join(format!("{}.crt", self.file)), certificate.pem())?;
        secret(&dir.join(format!("{}.key", self.file)), &key.serialize_pem())
    }
}

/// Writes a kubeconfig with the API server, the CA's file and one token.
pub fn kubeconfig(path: &Path, server: SocketAddrV4, ca: &Path, token: &str) -> Result<()> {
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gpu-operator-e2e",
        "contexts": [{"name": "gpu-operator-e2e", "context": {"cluster": "gpu-operator-e2e", "user": "user"}}],
        "clusters": [{"name": "gpu-operator-e2e", "cluster": {
            "server": format!("https://{server}"),
            "certificate-authority": ca,
        }}],
        "users": [{"name": "user", "user": {"token": token}}],
    });
    secret(path, &serde_yaml::to_string(&config)?)
}

/// Writes a file that only its owner can read.
fn secret(path: &Path, content: &str) -> Result<()> {
    let mut file = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("writing {}", path.display()))?;
    file.write_all(content.as_bytes())?;
    Ok(())
}

fn random() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}
