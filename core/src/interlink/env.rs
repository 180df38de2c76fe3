//! Environment and argument vector of a container, exactly as Kubernetes would make them.

use super::{
    files::Objects,
    kube::{Container, EnvVar, KeyRef, Pod, ValueFrom},
    record::EnvValue,
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

/// Replaces `$(NAME)` by the value of a known variable; `$$` is a dollar sign, an unknown name stays as it is.
/// <https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/>
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let after = from.get(1..).unwrap_or_default();
        if let Some(more) = after.strip_prefix('$') {
            out.push('$');
            rest = more;
            continue;
        }
        let name = after.strip_prefix('(').and_then(|inside| inside.split_once(')'));
        match name {
            Some((name, more)) => {
                match lookup(name) {
                    Some(value) => out.push_str(&value),
                    None => out.push_str(&format!("$({name})")),
                }
                rest = more;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The environment of a container. The virtual kubelet resolves and expands values before it sends them, so that a
/// `value` is taken as it is; a source it left to us is looked up in what came with the pod.
pub(super) fn environment(
    at: &str,
    pod: &Pod,
    container: &Container,
    objects: &Objects<'_>,
    faults: &mut Vec<String>,
) -> Vec<(String, EnvValue)> {
    let mut env: Vec<(String, EnvValue)> = Vec::new();
    let mut set = |name: String, value: EnvValue| match env.iter_mut().find(|(known, _)| *known == name) {
        Some(entry) => entry.1 = value,
        None => env.push((name, value)),
    };
    for from in &container.env_from {
        let (object, keys) = match (&from.config_map, &from.secret) {
            (Some(map), _) => (map, objects.config_map(&map.name)),
            (None, Some(secret)) => (secret, objects.secret(&secret.name)),
            (None, None) => continue,
        };
        match keys {
            Some(keys) => {
                for (key, bytes) in keys {
                    match String::from_utf8(bytes) {
                        Ok(text) => set(format!("{}{key}", from.prefix), EnvValue::Text(text)),
                        Err(_) => faults.push(format!("{at}.envFrom: {} key {key} is no text", object.name)),
                    }
                }
            }
            None if object.optional.unwrap_or(false) => {}
            None => faults.push(format!("{at}.envFrom: {:?} did not come with the pod", object.name)),
        }
    }
    for variable in &container.env {
        let at = format!("{at}.env[{}]", variable.name);
        if variable.name.is_empty() || variable.name.contains(['=', '\0']) || variable.value.contains('\0') {
            faults.push(format!("{at}: no variable can have this name or value"));
            continue;
        }
        match value(pod, variable, objects) {
            Ok(Some(value)) => set(variable.name.clone(), value),
            Ok(None) => {}
            Err(fault) => faults.push(format!("{at}{fault}")),
        }
    }
    env
}

fn value(pod: &Pod, variable: &EnvVar, objects: &Objects<'_>) -> Result<Option<EnvValue>, String> {
    let Some(from) = &variable.from else { return Ok(Some(EnvValue::Text(variable.value.clone()))) };
    match from {
        ValueFrom { field: Some(field), .. } => of_field(pod, &field.path).map(Some),
        ValueFrom { config_map: Some(key), .. } => of_key(key, objects.config_map(&key.name)),
        ValueFrom { secret: Some(key), .. } => of_key(key, objects.secret(&key.name)),
        ValueFrom { rest, .. } => {
            let kind = rest.keys().next().map_or("", String::as_str);
            Err(format!(".valueFrom.{kind}: this source is not supported"))
        }
    }
}

fn of_key(key: &KeyRef, keys: Option<BTreeMap<String, Vec<u8>>>) -> Result<Option<EnvValue>, String> {
    let found = keys.and_then(|mut keys| keys.remove(&key.key));
    match found {
        Some(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(EnvValue::Text(text))),
            Err(_) => Err(format!(".valueFrom: key {} of {} is no text", key.key, key.name)),
        },
        None if key.optional.unwrap_or(false) => Ok(None),
        None => Err(format!(".valueFrom: key {} of {:?} did not come with the pod", key.key, key.name)),
    }
}

fn of_field(pod: &Pod, path: &str) -> Result<EnvValue, String> {
    let metadata = &pod.metadata;
    let keyed = |map: &BTreeMap<String, String>, rest: &str| {
        let key = rest.strip_suffix("']").unwrap_or(rest);
        map.get(key).cloned().unwrap_or_default()
    };
    let text = match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => pod.spec.node_name.clone(),
        "spec.serviceAccountName" => pod.spec.service_account.clone(),
        "status.podIP" | "status.podIPs" => return Ok(EnvValue::PodIp),
        _ => match (path.strip_prefix("metadata.labels['"), path.strip_prefix("metadata.annotations['")) {
            (Some(rest), _) => keyed(&metadata.labels, rest),
            (None, Some(rest)) => keyed(&metadata.annotations, rest),
            (None, None) => return Err(format!(".valueFrom.fieldRef: {path:?} is not supported")),
        },
    };
    Ok(EnvValue::Text(text))
}

#[cfg(test)]
mod tests {
    use super::expand;
    use alloc::string::String;

    #[test]
    fn references_are_expanded_as_kubernetes_does() {
        let known = |name: &str| (name == "A").then(|| String::from("1$(A)"));
        for (text, expected) in [
            ("$(A)", "1$(A)"),
            ("x$(A)y", "x1$(A)y"),
            ("$$(A)", "$(A)"),
            ("$(B)", "$(B)"),
            ("$A `$` $( $", "$A `$` $( $"),
            ("$$$$", "$$"),
            ("ü$(A)ü", "ü1$(A)ü"),
            ("", ""),
        ] {
            assert_eq!(expand(text, known), expected, "{text}");
        }
    }
}
