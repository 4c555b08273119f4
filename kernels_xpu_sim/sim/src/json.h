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

inline std::string json_list(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + json_quoted(text);
  return "[" + all + "]";
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
