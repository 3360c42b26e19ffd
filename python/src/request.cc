#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "connector/request_params.h"
#include "convert.h"
#include "errors.h"

namespace inferscale::python {
namespace {

std::span<const std::byte> as_secret(const nb::bytes& value) {
  const std::span<const std::byte> secret = as_bytes(value);
  if (secret.size() < kMinSecretBytes) {
    throw nb::value_error(
        ("secret must have at least " + std::to_string(kMinSecretBytes) + " bytes").c_str());
  }
  return secret;
}

std::string signed_params(nb::dict params, const nb::bytes& secret) {
  const nb::object text = nb::module_::import_("json").attr("dumps")(params);
  return signed_params_json(take(parse_unsigned_params(to_text("params", text))),
                            as_secret(secret));
}

std::string record_key(const nb::bytes& secret, nb::handle scope, nb::handle fingerprint,
                       nb::handle context_id, nb::handle context_kind, nb::handle tokens) {
  RecordMeta meta;
  meta.scope = scope_hash(to_scope(scope));
  meta.model_fingerprint = to_hash("fingerprint", fingerprint);
  meta.context_id = to_hash("context_id", context_id);
  meta.context_kind = to_context_kind(context_kind);
  return make_record_key(as_secret(secret), meta, to_tokens("tokens", tokens)).value.to_hex();
}

void bind_params(nb::module_& m) {
  nb::class_<CaptureParams>(m, "CaptureParams", "A range of the prompt whose KV is to be stored.")
      .def_prop_ro("key", [](const CaptureParams& c) { return c.key.value.to_hex(); })
      .def_ro("begin", &CaptureParams::begin)
      .def_ro("end", &CaptureParams::end)
      .def_prop_ro("context_kind",
                   [](const CaptureParams& c) { return context_kind_name(c.context_kind); })
      .def_prop_ro("context_id", [](const CaptureParams& c) { return c.context_id.to_hex(); })
      .def_ro("context_tokens", &CaptureParams::context_tokens)
      .def_prop_ro("owner", [](const CaptureParams& c) { return record_owner_name(c.owner); });
  nb::class_<RequestParams>(m, "RequestParams", "A request's parameters, verified.")
      .def_ro("request", &RequestParams::request)
      .def_prop_ro("scope", [](const RequestParams& p) { return from_scope(p.scope); })
      .def_ro("epoch", &RequestParams::epoch)
      .def_prop_ro("purpose",
                   [](const RequestParams& p) { return request_purpose_name(p.purpose); })
      .def_ro("top_j", &RequestParams::top_j)
      .def_ro("context", &RequestParams::context)
      .def_ro("client_salt", &RequestParams::client_salt)
      .def_prop_ro("inject",
                   [](const RequestParams& p) {
                     std::vector<std::string> keys;
                     for (const RecordKey& key : p.inject) {
                       keys.push_back(key.value.to_hex());
                     }
                     return keys;
                   })
      .def_prop_ro("n_inject", [](const RequestParams& p) { return p.inject.size(); })
      .def_ro("capture", &RequestParams::capture);
}

}  // namespace

void bind_request(nb::module_& m) {
  bind_params(m);
  m.def(
      "parse_params",
      [](nb::handle json, const nb::bytes& secret) {
        return take(parse_params(to_text("json", json), as_bytes(secret)));
      },
      nb::arg("json"), nb::arg("secret"),
      nb::sig("def parse_params(json: str, secret: bytes) -> RequestParams"),
      "Raises ValueError (malformed) or PermissionError (not signed, or wrongly).");
  m.def("signed_params", &signed_params, nb::arg("params"), nb::arg("secret"),
        nb::sig("def signed_params(params: dict, secret: bytes) -> str"),
        "The JSON of a request's parameters with their signature. Raises ValueError.");
  m.def(
      "cache_salt",
      [](const RequestParams& params, const nb::bytes& secret, nb::handle fingerprint) {
        return cache_salt(as_secret(secret), params, to_hash("fingerprint", fingerprint));
      },
      nb::arg("params"), nb::arg("secret"), nb::arg("fingerprint"),
      nb::sig("def cache_salt(params: RequestParams, secret: bytes, fingerprint: str) -> str"));
  m.def(
      "control_token", [](const nb::bytes& secret) { return control_token(as_secret(secret)); },
      nb::arg("secret"));
  m.def("record_key", &record_key, nb::arg("secret"), nb::arg("scope"), nb::arg("fingerprint"),
        nb::arg("context_id"), nb::arg("context_kind"), nb::arg("tokens"),
        nb::sig("def record_key(secret: bytes, scope: dict[str, str] | str, fingerprint: str, "
                "context_id: str, context_kind: str, tokens: numpy.typing.NDArray[numpy.int32] | "
                "list[int]) -> str"));
  m.def(
      "context_id",
      [](nb::handle kind, nb::handle tokens, nb::handle injected) {
        return make_context_id(to_context_kind(kind), to_tokens("tokens", tokens),
                               to_keys("injected_keys", injected))
            .to_hex();
      },
      nb::arg("kind"), nb::arg("tokens"), nb::arg("injected_keys"),
      nb::sig("def context_id(kind: str, tokens: numpy.typing.NDArray[numpy.int32] | list[int], "
              "injected_keys: list[str]) -> str"));
  m.def(
      "scope_hash", [](nb::handle scope) { return scope_hash(to_scope(scope)).to_hex(); },
      nb::arg("scope"), nb::sig("def scope_hash(scope: dict[str, str] | str) -> str"));
  m.def(
      "owner_scope",
      [](nb::handle scope, nb::handle owner) {
        const std::string name = to_text("owner", owner);
        for (const RecordOwner known :
             {RecordOwner::kScope, RecordOwner::kTenant, RecordOwner::kSystem}) {
          if (name == record_owner_name(known)) {
            return from_scope(owner_scope(to_scope(scope), known));
          }
        }
        throw nb::value_error("owner must be scope, tenant or system");
      },
      nb::arg("scope"), nb::arg("owner"),
      nb::sig("def owner_scope(scope: dict[str, str], owner: str) -> dict[str, str]"),
      "Whose a captured record becomes.");
}

}  // namespace inferscale::python
