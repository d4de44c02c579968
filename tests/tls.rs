//! Encrypted connections, with the tests' own certificates.
#![cfg(all(feature = "tls", feature = "testbed"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "common/mod.rs"]
mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use quorlock::node::Fault;
use quorlock::testbed::Testbed;
use quorlock::{ConfigError, ConnectError, NodeConfig, Redlock, ReleaseOutcome, TlsOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = named("authority", Vec::new());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns a certificate and its key.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = named("somebody", vec![name.to_owned()]);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A certificate with the authority's name would be taken for the authority.
fn named(who: &str, names: Vec<String>) -> CertificateParams {
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, who);
    params
}

struct Encrypted {
    testbed: Testbed,
    authority: Authority,
    /// Removed with the test.
    _folder: tempfile::TempDir,
}

impl Encrypted {
    async fn start(clients_need_certificates: bool) -> Encrypted {
        Encrypted::start_as("127.0.0.1", clients_need_certificates).await
    }

    /// Starts servers with a certificate for `name`.
    async fn start_as(name: &str, clients_need_certificates: bool) -> Encrypted {
        let authority = Authority::new();
        let (certificate, key) = authority.issue(name);
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| -> PathBuf {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let mut builder = Testbed::builder().nodes(3).password("s3cret").tls(
            file("certificate.pem", &certificate),
            file("key.pem", &key),
            file("ca.pem", &authority.pem()),
        );
        if clients_need_certificates {
            builder = builder.arg("tls-auth-clients", "yes");
        }
        Encrypted {
            testbed: builder.start().await.unwrap(),
            authority,
            _folder: folder,
        }
    }

    fn urls(&self) -> Vec<String> {
        let urls = self.testbed.nodes().iter().map(|node| node.tls_url());
        urls.map(Option::unwrap).collect()
    }

    async fn connect(&self, tls: &TlsOptions) -> Result<Redlock, ConnectError> {
        let mut builder = Redlock::builder().connect_timeout(Duration::from_secs(2));
        for url in self.urls() {
            let node = NodeConfig::from_url(&url).unwrap();
            assert!(node.uses_tls());
            builder = builder.node(node.with_tls(tls).unwrap());
        }
        builder.connect().await
    }
}

async fn works(redlock: &Redlock) {
    let lease = redlock.lock("job").acquire().await.unwrap();
    assert!(lease.extend().await.is_ok());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

/// Checks that connecting fails because of certificates, and says so.
fn assert_refused(outcome: Result<Redlock, ConnectError>, words: &[&str]) {
    let error = outcome.unwrap_err();
    let text = error.to_string();
    let ConnectError::NoQuorum { votes, .. } = &error else {
        panic!("{error:?}")
    };
    for vote in votes.iter() {
        assert!(
            matches!(&vote.answer, Some(Err(Fault::Disconnected { .. }))),
            "{error:?}"
        );
    }
    assert!(
        words.iter().any(|word| text.to_lowercase().contains(word)),
        "{text}"
    );
    assert!(
        !text.contains("Custom {"),
        "the message shows a Rust value: {text}"
    );
    assert!(!text.contains("s3cret") && !format!("{error:?}").contains("s3cret"));
}

#[tokio::test]
async fn an_own_authority_is_trusted() {
    let encrypted = Encrypted::start(false).await;
    let tls = TlsOptions::new().ca_pem(encrypted.authority.pem());
    works(&encrypted.connect(&tls).await.unwrap()).await;
    encrypted.testbed.shutdown().await;
}

#[tokio::test]
async fn another_authority_is_not_trusted_and_neither_are_the_systems() {
    let encrypted = Encrypted::start(false).await;
    let tls = TlsOptions::new().ca_pem(Authority::new().pem());
    assert_refused(
        encrypted.connect(&tls).await,
        &["unknownissuer", "certificate", "badsignature"],
    );
    assert_refused(
        encrypted.connect(&TlsOptions::new()).await,
        &["unknownissuer", "certificate"],
    );
    encrypted.testbed.shutdown().await;
}

/// A certificate must be for the name in the URL, not for its address.
#[tokio::test]
async fn a_certificate_is_for_the_name_in_the_url() {
    for (name, is_accepted) in [("localhost", true), ("127.0.0.1", false)] {
        let encrypted = Encrypted::start_as(name, false).await;
        let tls = TlsOptions::new().ca_pem(encrypted.authority.pem());
        let mut builder = Redlock::builder().connect_timeout(Duration::from_secs(2));
        for url in encrypted.urls() {
            let url = url.replace("127.0.0.1", "localhost");
            builder = builder.node(NodeConfig::from_url(&url).unwrap().with_tls(&tls).unwrap());
        }
        let outcome = builder.connect().await;
        match is_accepted {
            true => works(&outcome.unwrap()).await,
            false => assert_refused(outcome, &["notvalidforname", "name", "certificate"]),
        }
    }
}

/// All certificates are replaced under a lease.
#[tokio::test]
async fn certificates_in_files_are_exchanged_while_connections_live() {
    let encrypted = Encrypted::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let issue = |authority: &Authority| {
        let (certificate, key) = authority.issue("client");
        fs::write(file("ca"), authority.pem()).unwrap();
        fs::write(file("certificate"), certificate).unwrap();
        fs::write(file("key"), key).unwrap();
    };
    issue(&encrypted.authority);
    let tls = TlsOptions::new()
        .ca_file(file("ca"))
        .client_files(file("certificate"), file("key"));
    let redlock = encrypted.connect(&tls).await.unwrap();
    let lease = redlock
        .lock("job")
        .ttl(Duration::from_secs(6))
        .acquire()
        .await
        .unwrap();

    let next = Authority::new();
    let (certificate, key) = next.issue("127.0.0.1");
    fs::write(file("server"), certificate).unwrap();
    fs::write(file("server key"), key).unwrap();
    issue(&next);
    for node in encrypted.testbed.nodes() {
        let path = |name: &str| file(name).to_str().unwrap().to_owned();
        let (ca, certificate, key) = (path("ca"), path("server"), path("server key"));
        let settings = [
            ["tls-ca-cert-file", &ca],
            ["tls-key-file", &key],
            ["tls-cert-file", &certificate],
        ];
        // The server refuses a key without its certificate.
        let command: Vec<&str> = ["CONFIG", "SET"]
            .into_iter()
            .chain(settings.iter().flatten().copied())
            .collect();
        node.command(&command).await.unwrap();
        node.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    }
    let deadline = lease.deadline();
    common::eventually("the lease is renewed", async || lease.deadline() > deadline).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    assert_refused(
        encrypted
            .connect(&TlsOptions::new().ca_pem(encrypted.authority.pem()))
            .await,
        &["unknown authority"],
    );
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_one_is_needed() {
    let encrypted = Encrypted::start(true).await;
    let tls = TlsOptions::new().ca_pem(encrypted.authority.pem());
    let (certificate, key) = encrypted.authority.issue("client");
    works(
        &encrypted
            .connect(&tls.clone().client_pem(certificate, key.clone()))
            .await
            .unwrap(),
    )
    .await;

    assert_refused(encrypted.connect(&tls).await, &["certificate"]);

    let (stranger, strangers_key) = Authority::new().issue("client");
    let strange = tls.clone().client_pem(stranger.clone(), strangers_key);
    assert_refused(encrypted.connect(&strange).await, &["ca", "certificate", "alert"]);
    encrypted.testbed.shutdown().await;

    // A key of another certificate, and texts that are no certificates.
    let node = || NodeConfig::from_url("rediss://127.0.0.1").unwrap();
    let mixed = tls.clone().client_pem(stranger, key.clone());
    let error = node().with_tls(&mixed).unwrap_err().to_string();
    assert!(!error.contains(key.lines().nth(1).unwrap()), "{error}");
    for broken in [
        TlsOptions::new().ca_pem("no certificate"),
        tls.client_pem("no certificate", "no key"),
    ] {
        assert!(node().with_tls(&broken).is_err());
    }
}

#[tokio::test]
async fn a_plain_connection_to_a_tls_port_fails_in_time() {
    let encrypted = Encrypted::start(false).await;
    let urls = encrypted
        .urls()
        .into_iter()
        .map(|url| url.replace("rediss", "redis"));
    let builder = Redlock::builder().urls(urls);
    let error = builder
        .connect_timeout(Duration::from_millis(500))
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::NoQuorum { .. }), "{error:?}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[test]
fn the_same_address_with_and_without_tls_is_listed_twice() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connecting = Redlock::connect(["redis://127.0.0.1:1", "rediss://127.0.0.1:1"]);
    let error = runtime.block_on(connecting).unwrap_err();
    assert!(
        matches!(error, ConnectError::Config(ConfigError::DuplicateNode { .. })),
        "{error:?}"
    );
}
