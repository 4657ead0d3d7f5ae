// A small reader and writer of JSON, as far as the protocol of docs/protocol.md needs it: numbers are whole numbers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace json {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Value {
public:
    using List = std::vector<Value>;
    using Object = std::vector<std::pair<std::string, Value>>;  // in the order in which it was written

    Value() = default;
    Value(bool value) : what_(value) {}
    Value(std::int64_t value) : what_(value) {}
    Value(int value) : what_(std::int64_t{value}) {}
    Value(std::string value) : what_(std::move(value)) {}
    Value(const char* value) : what_(std::string(value)) {}
    Value(List value) : what_(std::move(value)) {}
    Value(Object value) : what_(std::move(value)) {}

    bool is_null() const { return std::holds_alternative<std::monostate>(what_); }
    bool boolean() const { return get<bool>("true or false"); }
    std::int64_t number() const { return get<std::int64_t>("a whole number"); }
    const std::string& text() const { return get<std::string>("a text"); }
    const List& list() const { return get<List>("a list"); }
    const Object& object() const { return get<Object>("an object"); }

    const Value* find(const std::string& key) const {
        for (const auto& [name, value] : object())
            if (name == key) return &value;
        return nullptr;
    }

    const Value& operator[](const std::string& key) const {
        if (const Value* found = find(key)) return *found;
        throw Error("no `" + key + "`");
    }

    void write(std::string& out) const {
        if (const auto* flag = std::get_if<bool>(&what_)) {
            out += *flag ? "true" : "false";
        } else if (const auto* number = std::get_if<std::int64_t>(&what_)) {
            out += std::to_string(*number);
        } else if (const auto* text = std::get_if<std::string>(&what_)) {
            write_text(*text, out);
        } else if (const auto* list = std::get_if<List>(&what_)) {
            out += '[';
            for (const Value& item : *list) {
                if (&item != list->data()) out += ',';
                item.write(out);
            }
            out += ']';
        } else if (const auto* object = std::get_if<Object>(&what_)) {
            out += '{';
            for (const auto& member : *object) {
                if (&member != object->data()) out += ',';
                write_text(member.first, out);
                out += ':';
                member.second.write(out);
            }
            out += '}';
        } else {
            out += "null";
        }
    }

private:
    template <class T>
    const T& get(const char* expected) const {
        if (const T* found = std::get_if<T>(&what_)) return *found;
        throw Error(std::string("expected ") + expected);
    }

    static void write_text(const std::string& text, std::string& out) {
        out += '"';
        for (const char c : text) {
            if (c == '"' || c == '\\') {
                out += '\\';
                out += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char escaped[8];
                std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
                out += escaped;
            } else {
                out += c;
            }
        }
        out += '"';
    }

    std::variant<std::monostate, bool, std::int64_t, std::string, List, Object> what_;
};

class Reader {
public:
    // The value that a text is; throws Error if it is none.
    static Value read(const std::string& text) {
        Reader reader(text);
        Value value = reader.value(0);
        reader.skip();
        if (reader.at_ != text.size()) reader.fail("the end");
        return value;
    }

private:
    static constexpr int kDeepest = 64;

    explicit Reader(const std::string& text) : text_(text) {}

    [[noreturn]] void fail(const std::string& expected) const {
        throw Error("expected " + expected + " at byte " + std::to_string(at_));
    }

    void skip() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
    }

    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    bool take(char wanted) {
        skip();
        if (peek() != wanted) return false;
        ++at_;
        return true;
    }

    void need(char wanted) {
        if (!take(wanted)) fail(std::string("'") + wanted + "'");
    }

    Value value(int depth) {
        if (depth > kDeepest) fail("less depth");
        skip();
        switch (peek()) {
            case '{': return object(depth);
            case '[': return list(depth);
            case '"': return text();
            case 't': return word("true", Value(true));
            case 'f': return word("false", Value(false));
            case 'n': return word("null", Value());
            default: return number();
        }
    }

    Value word(const std::string& name, Value value) {
        if (text_.compare(at_, name.size(), name) != 0) fail(name);
        at_ += name.size();
        return value;
    }

    Value number() {
        const bool negative = take('-');
        if (peek() < '0' || peek() > '9') fail("a value");
        std::int64_t found = 0;
        for (; peek() >= '0' && peek() <= '9'; ++at_) {
            const int digit = peek() - '0';
            if (found > (INT64_MAX - digit) / 10) fail("a number of at most 63 bits");
            found = 10 * found + digit;
        }
        if (peek() == '.' || peek() == 'e' || peek() == 'E') fail("a whole number");
        return Value(negative ? -found : found);
    }

    Value list(int depth) {
        Value::List items;
        need('[');
        if (take(']')) return items;
        do items.push_back(value(depth + 1));
        while (take(','));
        need(']');
        return items;
    }

    Value object(int depth) {
        Value::Object members;
        need('{');
        if (take('}')) return members;
        do {
            skip();
            std::string name = text();
            need(':');
            members.emplace_back(std::move(name), value(depth + 1));
        } while (take(','));
        need('}');
        return members;
    }

    std::string text() {
        std::string found;
        need('"');
        while (peek() != '"') {
            if (at_ >= text_.size()) fail("the end of a text");
            if (text_[at_] == '\\') {
                ++at_;
                escaped(found);
            } else {
                found += text_[at_++];
            }
        }
        ++at_;
        return found;
    }

    void escaped(std::string& found) {
        const std::string letters = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
        const char letter = peek();
        ++at_;
        if (letter == 'u') {
            std::uint32_t point = hex();
            if (point >= 0xD800 && point < 0xDC00 && text_.compare(at_, 2, "\\u") == 0) {
                at_ += 2;
                point = 0x10000 + ((point - 0xD800) << 10) + (hex() - 0xDC00);
            }
            utf8(point, found);
        } else if (const auto place = letters.find(letter); place != std::string::npos) {
            found += meant[place];
        } else {
            fail("an escape");
        }
    }

    std::uint32_t hex() {
        std::uint32_t found = 0;
        for (int n = 0; n < 4; ++n, ++at_) {
            const char c = peek();
            const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
            if (digit < 0) fail("four hexadecimal digits");
            found = 16 * found + static_cast<std::uint32_t>(digit);
        }
        return found;
    }

    static void utf8(std::uint32_t point, std::string& found) {
        const auto put = [&](std::uint32_t byte) { found += static_cast<char>(byte); };
        if (point < 0x80) {
            put(point);
        } else if (point < 0x800) {
            put(0xC0 | point >> 6);
            put(0x80 | (point & 0x3F));
        } else if (point < 0x10000) {
            put(0xE0 | point >> 12);
            put(0x80 | (point >> 6 & 0x3F));
            put(0x80 | (point & 0x3F));
        } else {
            put(0xF0 | point >> 18);
            put(0x80 | (point >> 12 & 0x3F));
            put(0x80 | (point >> 6 & 0x3F));
            put(0x80 | (point & 0x3F));
        }
    }

    const std::string& text_;
    std::size_t at_ = 0;
};

}  // namespace json
