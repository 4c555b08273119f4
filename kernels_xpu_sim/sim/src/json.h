// Writing JSON objects.
#pragma once

#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

namespace xpu_sim {

inline std::string json_quoted(const std::string& s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned char>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// An array of what text() gives of each, on a line of its own if `lines`.
template <class R, class F>
std::string json_array(const R& values, F text, bool lines = false) {
  std::string all;
  for (const auto& value : values) all += (all.empty() ? "" : lines ? ",\n  " : ", ") + text(value);
  return lines && !all.empty() ? "[\n  " + all + "\n]" : "[" + all + "]";
}

class Json {
 public:
  Json& add_raw(const char* key, const std::string& value) {
    body_ += (body_.empty() ? "" : ", ") + json_quoted(key) + ": " + value;
    return *this;
  }
  Json& add(const char* key, const std::string& value) { return add_raw(key, json_quoted(value)); }
  template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
  Json& add(const char* key, T value) {
    return add_raw(key, std::to_string(value));
  }
  std::string text() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

}  // namespace xpu_sim
