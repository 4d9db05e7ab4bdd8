//! Keys, certificates and tokens of the local cluster, made anew for each one.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use crate::{audit::ADMIN, state::NODE_NAME, tools::hex};

/// Who may talk to the API server with which token.
pub(crate) struct Tokens {
    pub admin: String,
    pub node: String,
}

/// Writes into `dir`: `ca.crt`; `apiserver.*` (serving); `kubelet-serving.*`; `kubelet-client.*` (how the API server
/// shows itself to the kubelet); `service-account.key` and `.pub`; `tokens.csv`.
pub(crate) fn write(dir: &Path) -> Result<Tokens> {
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
    leaf(dir, "apiserver", "kube-apiserver", &api, ExtendedKeyUsagePurpose::ServerAuth, &issuer)?;
    leaf(dir, "kubelet-serving", NODE_NAME, &[NODE_NAME], ExtendedKeyUsagePurpose::ServerAuth, &issuer)?;
    leaf(dir, "kubelet-client", "kube-apiserver", &[], ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
    let service_accounts = KeyPair::generate()?;
    fs::write(dir.join("service-account.pub"), service_accounts.public_key_pem())?;
    secret(&dir.join("service-account.key"), &service_accounts.serialize_pem())?;

    let tokens = Tokens { admin: random()?, node: random()? };
    let table = format!(
        "{},{ADMIN},{ADMIN},\"system:masters\"\n{},system:node:{NODE_NAME},{NODE_NAME},\"system:nodes\"\n",
        tokens.admin, tokens.node
    );
    secret(&dir.join("tokens.csv"), &table)?;
    Ok(tokens)
}

fn leaf(
    dir: &Path,
    file: &str,
    name: &str,
    dns: &[&str],
    usage: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<()> {
    let key = KeyPair::generate()?;
    let names: Vec<String> = dns.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let certificate = params.signed_by(&key, issuer)?;
    fs::write(dir.join(format!("{file}.crt")), certificate.pem())?;
    secret(&dir.join(format!("{file}.key")), &key.serialize_pem())
}

/// Writes a kubeconfig that names the API server, the CA's file and one token.
pub(crate) fn kubeconfig(path: &Path, port: u16, ca: &Path, token: &str) -> Result<()> {
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gpu-operator-e2e",
        "contexts": [{"name": "gpu-operator-e2e", "context": {"cluster": "gpu-operator-e2e", "user": "user"}}],
        "clusters": [{"name": "gpu-operator-e2e", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
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
