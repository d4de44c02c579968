//! User names and passwords that change while connections live.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

/// A user name and a password.
///
/// `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: String,
    pub(super) valid_for: Option<Duration>,
}

impl Credentials {
    /// A password for the user that the node's URL names, or for the default user.
    pub fn password(password: impl Into<String>) -> Self {
        Credentials {
            username: None,
            password: password.into(),
            valid_for: None,
        }
    }

    /// A user name and its password.
    pub fn user(username: impl Into<String>, password: impl Into<String>) -> Self {
        Credentials {
            username: Some(username.into()),
            ..Credentials::password(password)
        }
    }

    /// How long these credentials are valid, from when the provider gives them. Live connections authenticate again, with new
    /// credentials, after four fifths of that. By default, they are taken to be valid for as long as a connection lives.
    pub fn valid_for(mut self, valid_for: Duration) -> Self {
        self.valid_for = Some(valid_for);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

type Answer = Result<Credentials, String>;

/// Gives a node's credentials, anew for each connection: for passwords that are rotated, and tokens that expire.
///
/// A node whose provider fails is out of reach, with the reason; it is asked again with the next attempt to connect. A provider
/// that takes longer than the [`connect_timeout`](crate::RedlockBuilder::connect_timeout) has failed.
///
/// ```
/// use std::time::Duration;
/// use quorlock::{Credentials, CredentialsProvider, NodeConfig};
///
/// # async fn token() -> Result<String, std::io::Error> { Ok("token".into()) }
/// # fn example() -> Result<(), quorlock::OptionError> {
/// let from_a_file = CredentialsProvider::file("/run/secrets/redis");
/// let node = NodeConfig::from_url("redis://locker@db1:6379")?.with_credentials(from_a_file);
///
/// let short_lived = CredentialsProvider::from_fn(|| async {
///     Ok::<_, std::io::Error>(Credentials::password(token().await?).valid_for(Duration::from_secs(900)))
/// });
/// let node = NodeConfig::from_url("redis://locker@db1:6379")?.with_credentials(short_lived);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CredentialsProvider(Arc<dyn Fn() -> BoxFuture<'static, Answer> + Send + Sync>);

impl CredentialsProvider {
    /// Calls `provide` for each connection. It runs on the runtime that the manager was connected on.
    pub fn from_fn<F, P, E>(provide: F) -> Self
    where
        F: Fn() -> P + Send + Sync + 'static,
        P: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        CredentialsProvider(Arc::new(move || {
            provide()
                .map(|given| given.map_err(|error| error.to_string()))
                .boxed()
        }))
    }

    /// Reads the password from a file, without the end of its line, for each connection.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        CredentialsProvider::from_fn(move || {
            let path = path.clone();
            async move {
                let shown = path.display().to_string();
                // On a thread of its own: the file may be far away.
                let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
                let text = read.await.map_err(|error| format!("{shown}: {error}"))?;
                let text = text.map_err(|error| format!("{shown}: {error}"))?;
                match text.trim_end_matches(['\r', '\n']) {
                    "" => Err(format!("{shown} is empty")),
                    password => Ok(Credentials::password(password)),
                }
            }
        })
    }

    /// Reads the password from an environment variable of this process, for each connection.
    pub fn env(name: impl Into<String>) -> Self {
        let name = name.into();
        CredentialsProvider::from_fn(move || {
            let read = std::env::var(&name).map_err(|error| format!("{name}: {error}"));
            std::future::ready(read.map(Credentials::password))
        })
    }

    pub(super) async fn give(&self) -> Answer {
        (self.0)().await
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider(..)")
    }
}
