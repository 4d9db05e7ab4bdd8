//! Keys, certificates and tokens of the local cluster, made anew for each one.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use crate::{audit::ADMIN, network, state::NodeId, tools::hex};

/// Who may talk to the API server with which token.
pub(crate) struct Tokens {
    pub admin: String,
    /// A node's kubelet's.
    pub nodes: Vec<(NodeId, String)>,
}

/// Writes into `dir`: `ca.crt`; `apiserver.*` (serving); for each node `NAME.*` (its kubelet's, serving);
/// `kubelet-client.*` (how the API server shows itself to kubelets); `service-account.key` and `.pub`; `tokens.csv`.
pub(crate) fn write(dir: &Path, nodes: impl Iterator<Item = NodeId>) -> Result<Tokens> {
    fs::create_dir_all(dir)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "gpu-operator-e2e");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca = params.self_signed(&key)?;
    fs::write(dir.join("ca.crt"), ca.pem())?;
    let issuer = Issuer::new(params, key);

    let api = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    leaf(dir, "apiserver", "kube-apiserver", &api, network::CONTROL_PLANE, server.clone(), &issuer)?;
    leaf(
        dir,
        "kubelet-client",
        "kube-apiserver",
        &[],
        Ipv4Addr::LOCALHOST,
        ExtendedKeyUsagePurpose::ClientAuth,
        &issuer,
    )?;
    let service_accounts = KeyPair::generate()?;
    fs::write(dir.join("service-account.pub"), service_accounts.public_key_pem())?;
    secret(&dir.join("service-account.key"), &service_accounts.serialize_pem())?;

    let mut tokens = Tokens { admin: random()?, nodes: Vec::new() };
    let mut table = format!("{},{ADMIN},{ADMIN},\"system:masters\"\n", tokens.admin);
    for node in nodes {
        let (name, token) = (node.name(), random()?);
        leaf(dir, &name, &name, &[&name], node.address(), server.clone(), &issuer)?;
        writeln!(table, "{token},system:node:{name},{name},\"system:nodes\"")?;
        tokens.nodes.push((node, token));
    }
    secret(&dir.join("tokens.csv"), &table)?;
    Ok(tokens)
}

fn leaf(
    dir: &Path,
    file: &str,
    name: &str,
    dns: &[&str],
    address: Ipv4Addr,
    usage: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<()> {
    let key = KeyPair::generate()?;
    let names: Vec<String> = dns.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    let addresses = [Ipv4Addr::LOCALHOST, address].map(|address| SanType::IpAddress(IpAddr::V4(address)));
    params.subject_alt_names.extend(addresses);
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let certificate = params.signed_by(&key, issuer)?;
    fs::write(dir.join(format!("{file}.crt")), certificate.pem())?;
    secret(&dir.join(format!("{file}.key")), &key.serialize_pem())
}

/// Writes a kubeconfig that names the API server, the CA's file and one token.
pub(crate) fn kubeconfig(path: &Path, server: SocketAddrV4, ca: &Path, token: &str) -> Result<()> {
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

/// Writes a file that only its owner may read.
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
