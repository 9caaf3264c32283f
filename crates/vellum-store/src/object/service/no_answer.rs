//! Why a request has no answer, in words that say what to do.

use std::error::Error;
use std::io;

use rustls::CertificateError;

use super::exchange::TransportFailureKind;
use super::transport::transport_error;

/// The error of a request that was not answered.
pub(super) fn describe_send_error(error: &reqwest::Error) -> opendal::Error {
    let cause = innermost_error(error);
    let host = error.url().and_then(|url| url.host_str()).unwrap_or("the host").to_owned();
    if !error.is_connect() {
        let message = format!("the connection to {host} failed: {cause}");
        return transport_error(TransportFailureKind::Unanswered, message);
    }
    // reqwest does not distinguish this case, but the text of its error does.
    if format!("{error:?}").contains("dns error") {
        let message = format!("the name '{host}' cannot be resolved: {cause}");
        return transport_error(TransportFailureKind::Hopeless, message);
    }
    match find_tls_error(error) {
        Some(rustls::Error::InvalidCertificate(reason)) => {
            transport_error(TransportFailureKind::Hopeless, describe_certificate_error(&host, reason))
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            let message = format!("{host} does not speak TLS at this port: is it one of http://?");
            transport_error(TransportFailureKind::Hopeless, message)
        }
        Some(_) | None => {
            let message = format!("cannot connect to {host}: {cause}");
            transport_error(TransportFailureKind::Unanswered, message)
        }
    }
}

/// What is wrong with the certificate of a host, and who can mend it.
fn describe_certificate_error(host: &str, reason: &CertificateError) -> String {
    let described = match reason {
        // The signature is wrong if another authority has the name of the one that is trusted.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no authority that is trusted here has signed it; 'ca=/path' in the address names a file with the \
             certificate of your own authority"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired: renew it on the server, unless this machine's clock is wrong".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: is this machine's clock right?".to_owned()
        }
        CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            let names: Vec<_> = presented.iter().map(|name| strip_name_type(name)).collect();
            format!("it is that of {}: use this name in the address", names.join(", "))
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is that of another host: use the name in the address that the certificate has".to_owned()
        }
        // The verifier has no case of its own for what `openssl req -x509` makes.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "it is that of an authority, not of a server: make one with 'basicConstraints=CA:FALSE'".to_owned()
        }
        other => other.to_string(),
    };
    format!("the certificate of {host} is not accepted: {described}")
}

/// `example.org` of `DnsName("example.org")`.
fn strip_name_type(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// The error of the TLS library that another one is about.
fn find_tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // What an error of input and output wraps is not its source, but itself.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

/// The cause at the end of an error's chain: the message of the system or of the TLS library.
pub(super) fn innermost_error(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
