#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trimtab::io {

/// Files of one test in one directory, gone at its end.
class Directory {
 public:
  Directory() {
    std::string name = "/tmp/trimtab-experts-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& contents) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << contents;
    return path_ + "/" + name;
  }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

template <class T>
void expect_error(const base::Result<T>& result, std::initializer_list<std::string_view> parts) {
  ASSERT_FALSE(result.has_value());
  for (const auto part : parts) {
    EXPECT_NE(result.error().message.find(part), std::string::npos)
        << result.error().message << "\nlacks " << part;
  }
}

}  // namespace trimtab::io
