//! Certificates for `rediss://` (feature `tls`).

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, fs, io};

use fred::types::config::TlsConnector;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::fault;
use crate::node::Fault;

/// Certificate authorities to trust, and a client certificate. By default, the system's authorities and no client certificate.
///
/// `Debug` does not show the key.
#[derive(Clone, Default)]
pub struct TlsOptions {
    authorities: Option<Pem>,
    identity: Option<(Pem, Pem)>,
}

#[derive(Clone)]
enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    fn read(&self) -> Result<Cow<'_, [u8]>, TlsError> {
        match self {
            Pem::Text(text) => Ok(text.into()),
            Pem::File(path) => fs::read(path).map(Cow::from).map_err(|error| TlsError::File {
                path: path.clone(),
                reason: error.to_string(),
            }),
        }
    }
}

impl TlsOptions {
    /// Trusts the system's certificate authorities, and uses no client certificate.
    pub fn new() -> Self {
        TlsOptions::default()
    }

    /// Trusts the certificates in `pem`, *instead of* the system's.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(Pem::Text(pem.into()));
        self
    }

    /// Trusts the certificates in this PEM file, *instead of* the system's. The file is read again for each connection, so it may
    /// be replaced at any time. If it cannot be read, the node is out of reach.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authorities = Some(Pem::File(path.into()));
        self
    }

    /// Identifies this client by a certificate (chain) and its private key, both PEM.
    pub fn client_pem(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((Pem::Text(certificate.into()), Pem::Text(key.into())));
        self
    }

    /// Identifies this client by two PEM files, a certificate (chain) and its private key. Each connection reads them again.
    pub fn client_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((Pem::File(certificate.into()), Pem::File(key.into())));
        self
    }

    /// Returns whether a certificate or key comes from a file.
    pub(super) fn has_files(&self) -> bool {
        let identity = self
            .identity
            .iter()
            .flat_map(|(certificate, key)| [certificate, key]);
        let mut all = self.authorities.iter().chain(identity);
        all.any(|pem| matches!(pem, Pem::File(_)))
    }

    pub(super) fn connector(&self) -> Result<TlsConnector, TlsError> {
        // Named here, because the process has no default provider once another crate has added a second one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?);
        let config = match &self.identity {
            Some((certificate, key)) => {
                let chain = certificates(&certificate.read()?, "client certificate")?;
                let key = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(|error| TlsError::Pem {
                    what: "client key",
                    reason: error.to_string(),
                })?;
                config.with_client_auth_cert(chain, key)?
            }
            None => config.with_no_client_auth(),
        };
        Ok(config.into())
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut store = RootCertStore::empty();
        match &self.authorities {
            Some(pem) => {
                for certificate in certificates(&pem.read()?, "certificate authority")? {
                    store.add(certificate)?;
                }
            }
            None => {
                let native = rustls_native_certs::load_native_certs();
                // Single broken files in a system's store are common. The other certificates are still trusted.
                store.add_parsable_certificates(native.certs);
                if let (true, Some(error)) = (store.is_empty(), native.errors.first()) {
                    return Err(TlsError::System {
                        reason: error.to_string(),
                    });
                }
            }
        }
        Ok(store)
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("own_authorities", &self.authorities.is_some())
            .field("client_certificate", &self.identity.is_some())
            .finish()
    }
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Pem {
            what,
            reason: error.to_string(),
        })?;
    if found.is_empty() {
        return Err(TlsError::Pem {
            what,
            reason: "it contains no certificate".into(),
        });
    }
    Ok(found)
}

/// Encrypts a connection to the server of this name, which its certificate must show.
pub(super) async fn handshake(
    connector: &TlsConnector,
    name: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Fault> {
    let refused = |reason: String| fault::disconnected(format!("TLS: {reason}").into());
    // Another crate in the tree may have added other connectors to the client library.
    #[allow(irrefutable_let_patterns)]
    let TlsConnector::Rustls(connector) = connector else {
        return Err(refused("only rustls is supported".into()));
    };
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| refused(format!("{name:?} is not a valid server name")))?;
    let encrypted = connector.connect(name, stream).await;
    encrypted.map_err(|error| match explain(&error) {
        Some(reason) => refused(reason),
        None => fault::as_disconnected(fault::from_io(&error)),
    })
}

/// Returns what is wrong with a certificate, and what to do about it. `None` for an error of the socket.
fn explain(error: &io::Error) -> Option<String> {
    let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
    Some(match error {
        rustls::Error::InvalidCertificate(invalid) => match invalid {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the server's certificate is signed by an unknown authority: trust it with TlsOptions::ca_pem (--tls-ca)".into()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired: renew it on the server".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet: is the clock right?".into()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the server's certificate is for another name than the URL's: write that name in the URL".into()
            }
            other => format!("the server's certificate: {other:?}"),
        },
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS on this port: write redis:// in its URL, or the port for TLS".into()
        }
        rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired) => {
            "the server wants a client certificate: give one with TlsOptions::client_pem (--tls-cert, --tls-key)".into()
        }
        other => other.to_string(),
    })
}

/// A certificate or key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Not readable as PEM.
    #[error("{what}: {reason}")]
    Pem {
        /// Which one.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system's certificate authorities could not be read.
    #[error("the system's certificate authorities: {reason}")]
    System {
        /// What is wrong.
        reason: String,
    },
    /// Certificate and key do not go together, or are of a kind that is not supported.
    #[error("TLS: {0}")]
    Rustls(String),
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        TlsError::Rustls(error.to_string())
    }
}
