#include "vision/image_header.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <string>

namespace trimtab::vision {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string big_endian(std::uint32_t value, int width) {
  std::string bytes;
  for (int i = width - 1; i >= 0; --i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string png(std::uint32_t width, std::uint32_t height) {
  return "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"s + big_endian(width, 4) + big_endian(height, 4) +
         "\x08\x06\0\0\0crc!"s;
}

/// A comment, a table and fill bytes stand before the frame header, as cameras write them.
std::string jpeg(std::uint32_t width, std::uint32_t height, char frame = '\xC2') {
  return "\xFF\xD8\xFF\xE0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xFF\xFE\0\x05xyz\xFF\xFF\xFF"s + frame +
         "\0\x0B\x08"s + big_endian(height, 2) + big_endian(width, 2) + "\x01\x01\x11\0\xFF\xDA..."s;
}

std::string error_of(const std::string& image, std::string_view declared = {},
                     const ImageLimits& limits = {}) {
  const auto header = image_header(bytes_of(image), declared, limits);
  return header ? "" : header.error().message;
}

TEST(ImageHeader, ReadsPngAndJpegSizes) {
  const auto from_png = image_header(bytes_of(png(640, 480)), "image/png");
  ASSERT_TRUE(from_png) << from_png.error().message;
  EXPECT_EQ(from_png->width, 640U);
  EXPECT_EQ(from_png->height, 480U);
  EXPECT_EQ(from_png->media_type, "image/png");
  for (const char frame : {'\xC0', '\xC1', '\xC2', '\xC3', '\xCF'}) {
    const auto from_jpeg = image_header(bytes_of(jpeg(300, 200, frame)), "image/jpeg");
    ASSERT_TRUE(from_jpeg) << from_jpeg.error().message;
    EXPECT_EQ(from_jpeg->width, 300U);
    EXPECT_EQ(from_jpeg->height, 200U);
  }
  EXPECT_TRUE(image_header(bytes_of(jpeg(1, 1)), "image/jpg"));
  EXPECT_TRUE(image_header(bytes_of(jpeg(1, 1))));
}

TEST(ImageHeader, WhatIsNoImageIsNamed) {
  EXPECT_THAT(error_of("hello, this is text"), HasSubstr("not an image"));
  EXPECT_THAT(error_of(""), HasSubstr("empty"));
  EXPECT_THAT(error_of("GIF89a...."), HasSubstr("a GIF; PNG and JPEG"));
  EXPECT_THAT(error_of("RIFF....WEBPVP8 "), HasSubstr("a WebP"));
  EXPECT_THAT(error_of("%PDF-1.7"), HasSubstr("a PDF"));
}

TEST(ImageHeader, EmptyAndAbsurdSizesAreNamed) {
  EXPECT_THAT(error_of(png(0, 0)), HasSubstr("0x0 pixels"));
  EXPECT_THAT(error_of(png(0, 5)), HasSubstr("0x5"));
  EXPECT_THAT(error_of(jpeg(7, 0)), HasSubstr("7x0"));
  EXPECT_THAT(error_of(png(100'000, 100'000)), HasSubstr("100000x100000 pixels"));
  EXPECT_THAT(error_of(png(0xFFFFFFFF, 0xFFFFFFFF)), HasSubstr("4294967295x4294967295"));
  EXPECT_THAT(error_of(png(20'000, 1)), HasSubstr("20000x1"));        // a side
  EXPECT_THAT(error_of(png(10'000, 10'000)), HasSubstr("40000000"));  // the area
  EXPECT_EQ(error_of(png(8'000, 5'000)), "");                         // just the area
  EXPECT_NE(error_of(png(8'000, 5'001)), "");
}

TEST(ImageHeader, TheDeclaredTypeMustBeTheTruth) {
  EXPECT_THAT(error_of(png(5, 5), "image/jpeg"),
              HasSubstr("declared as image/jpeg and its bytes are image/png"));
  EXPECT_THAT(error_of(jpeg(5, 5), "image/png"), HasSubstr("declared as image/png"));
  EXPECT_THAT(error_of(png(5, 5), "image/webp"), HasSubstr("'image/webp' is not supported"));
  EXPECT_THAT(error_of(png(5, 5), "text/html"), HasSubstr("text/html"));
}

TEST(ImageHeader, TooManyBytesAreTooLarge) {
  ImageLimits limits;
  limits.bytes_max = 20;
  const auto header = image_header(bytes_of(png(5, 5)), "image/png", limits);
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, base::Code::kTooLarge);
}

TEST(ImageHeader, EveryTruncationIsAnError) {
  const std::string whole = png(640, 480);
  for (std::size_t size = 0; size < 24; ++size) EXPECT_NE(error_of(whole.substr(0, size)), "") << size;
  const std::string photo = jpeg(300, 200);
  const std::size_t needed = photo.find("\x01\x01\x11\0\xFF\xDA"s);
  for (std::size_t size = 0; size < needed; ++size) EXPECT_NE(error_of(photo.substr(0, size)), "") << size;
  EXPECT_EQ(error_of(photo.substr(0, needed)), "");
}

TEST(ImageHeader, BrokenJpegsEndTheSearch) {
  EXPECT_THAT(error_of("\xFF\xD8\xFF\xE0\0\x01...."s), HasSubstr("segment of 1 bytes"));
  EXPECT_THAT(error_of("\xFF\xD8\xFF\xDA\0\x08......"s), HasSubstr("before any frame header"));
  EXPECT_THAT(error_of("\xFF\xD8\xFF\xE0\0\x04..zz..."s), HasSubstr("no marker at byte 8"));
  EXPECT_THAT(error_of("\xFF\xD8" + std::string(100'000, '\xFF')), HasSubstr("ends after"));
}

RC_GTEST_PROP(ImageHeader, FlippedBytesGiveASizeWithinTheLimitsOrAnError,
              (std::vector<std::pair<std::uint8_t, char>> flips)) {
  for (std::string image : {png(640, 480), jpeg(300, 200)}) {
    for (const auto& [at, value] : flips) image[at % image.size()] = value;
    const auto header = image_header(bytes_of(image));
    if (!header) continue;
    RC_ASSERT(header->width > 0U);
    RC_ASSERT(header->height > 0U);
    RC_ASSERT(std::uint64_t{header->width} * header->height <= ImageLimits{}.pixels_max);
  }
}

}  // namespace
}  // namespace trimtab::vision
