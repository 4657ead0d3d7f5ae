// A driver in C++17: speaks the protocol of docs/protocol.md for the manager of manager.hpp. Built by `make driver`.
//
//     kvspec conform --exec build/paged_driver
//     kvspec conform --exec "build/paged_driver --fault leak"       (build/paged_driver --list-faults names them all)
//
// A line comes in, a line goes out. Answers are written at once, but where more requests are waiting already.

#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include "json.hpp"
#include "manager.hpp"

namespace {

using json::Value;

constexpr int kVersion = 1;
constexpr int kMisuse = -32000, kFailure = -32001, kNoSuchMethod = -32601, kBadParameters = -32602, kNoJson = -32700;

struct NoSuchMethod : std::runtime_error {
    using std::runtime_error::runtime_error;
};

std::vector<std::int64_t> numbers(const Value& value) {
    std::vector<std::int64_t> found;
    for (const Value& item : value.list()) found.push_back(item.number());
    return found;
}

template <class T>
Value listed(const std::vector<T>& items) {
    return Value::List(items.begin(), items.end());
}

Value events(const std::vector<paged::Event>& events) {
    Value::List found;
    for (const paged::Event& event : events)
        found.push_back(Value::Object{
            {"kind", event.stored ? "stored" : "removed"}, {"key", event.key}, {"block_id", event.block}});
    return found;
}

Value keys(const std::map<std::string, int>& cached) { return Value::Object(cached.begin(), cached.end()); }

class Driver {
public:
    explicit Driver(paged::Fault fault) : fault_(fault) {}

    // The answer to a line.
    std::string answer(const std::string& line) {
        Value id;
        Value::Object answered{{"jsonrpc", "2.0"}};
        const auto failed = [&](int code, const std::string& what) {
            return Value::Object{{"jsonrpc", "2.0"}, {"id", id}, {"error", Value::Object{{"code", code}, {"message", what}}}};
        };
        try {
            const Value request = json::Reader::read(line);
            id = request["id"];
            const Value* params = request.find("params");
            Value result = call(request["method"].text(), params ? *params : Value(Value::Object{}));
            answered.emplace_back("id", id);
            answered.emplace_back("result", std::move(result));
        } catch (const paged::Misuse& error) {
            answered = failed(kMisuse, error.what());
        } catch (const NoSuchMethod& error) {
            answered = failed(kNoSuchMethod, error.what());
        } catch (const json::Error& error) {
            answered = failed(id.is_null() ? kNoJson : kBadParameters, error.what());
        } catch (const std::exception& error) {
            answered = failed(kFailure, error.what());
        }
        std::string out;
        Value(std::move(answered)).write(out);
        return out + '\n';
    }

private:
    using Method = std::function<Value(paged::Manager&, const Value&)>;

    Value call(const std::string& name, const Value& p) {
        if (name == "hello") return hello();
        if (name == "make") return make(p);
        const auto found = methods().find(name);
        if (found == methods().end()) throw NoSuchMethod("there is no method " + name);
        paged::check(manager_ != nullptr, "the manager is closed");
        if (name == "close") {
            manager_.reset();
            return {};
        }
        return found->second(*manager_, p);
    }

    static Value hello() { return Value::Object{{"protocol", kVersion}, {"name", "paged-cpp"}, {"version", "1.0"}}; }

    Value make(const Value& p) {
        const std::string& form = p["form"].text();
        if (form != "managers") throw std::runtime_error("no " + form + " here, expected managers");
        const Value& config = p["config"];
        manager_ = std::make_unique<paged::Manager>(config["num_blocks"].number(), config["block_size"].number(),
                                                    config["enable_prefix_cache"].boolean(), fault_);
        const Value::List capabilities{"free_ids", "free_count", "used_count", "ref_counts", "cached_keys",
                                       "events",   "contents",   "fork",       "truncate",   "hold"};
        return Value::Object{{"capabilities", capabilities}, {"hit_limit", "all_but_one"}};
    }

    static const std::map<std::string, Method>& methods() {
        using M = paged::Manager;
        using P = Value;
        static const std::map<std::string, Method> all{
            {"start", [](M& m, const P& p) {
                 std::string context;
                 p["context"].write(context);
                 m.start(p["seq"].text(), numbers(p["tokens"]), context);
                 return P();
             }},
            {"append", [](M& m, const P& p) { return m.append(p["seq"].text(), numbers(p["tokens"])), P(); }},
            {"allocate_shared", [](M& m, const P& p) { return P(m.allocate_shared(p["seq"].text())); }},
            {"allocate", [](M& m, const P& p) { return P(m.allocate(p["seq"].text(), p["num_tokens"].number())); }},
            {"write", [](M& m, const P& p) {
                 std::vector<std::pair<std::string, std::vector<std::int64_t>>> batch;
                 for (const P& part : p["batch"].list())
                     batch.emplace_back(part.list().at(0).text(), numbers(part.list().at(1)));
                 m.write(batch);
                 return P();
             }},
            {"read", [](M& m, const P& p) {
                 return listed(m.read(p["seq"].text(), p["start"].number(), p["stop"].number()));
             }},
            {"cache", [](M& m, const P& p) { return m.cache(p["seq"].text()), P(); }},
            {"deallocate", [](M& m, const P& p) { return m.deallocate(p["seq"].text()), P(); }},
            {"preempt", [](M& m, const P& p) { return m.preempt(p["seq"].text()), P(); }},
            {"abort", [](M& m, const P& p) { return m.abort(p["seq"].text()), P(); }},
            {"fork", [](M& m, const P& p) { return m.fork(p["parent"].text(), p["child"].text()), P(); }},
            {"truncate", [](M& m, const P& p) {
                 return m.truncate(p["seq"].text(), p["num_tokens"].number()), P();
             }},
            {"evict", [](M& m, const P& p) { return P(m.evict(p["num_blocks"].number())); }},
            {"reset", [](M& m, const P&) { return P(m.reset()); }},
            {"hold", [](M& m, const P& p) { return P(m.hold(p["block_id"].number())); }},
            {"release", [](M& m, const P& p) { return m.release(p["handle"].number()), P(); }},
            {"close", [](M&, const P&) { return P(); }},
            {"block_table", [](M& m, const P& p) { return listed(m.block_table(p["seq"].text())); }},
            {"num_computed", [](M& m, const P& p) { return P(m.num_computed(p["seq"].text())); }},
            {"free_ids", [](M& m, const P&) { return listed(m.free_ids()); }},
            {"free_count", [](M& m, const P&) { return P(m.free_count()); }},
            {"used_count", [](M& m, const P&) { return P(m.used_count()); }},
            {"ref_count", [](M& m, const P& p) { return P(m.ref_count(p["block_id"].number())); }},
            {"cached", [](M& m, const P&) { return keys(m.cached()); }},
            {"drain_events", [](M& m, const P&) { return events(m.drain_events()); }},
        };
        return all;
    }

    paged::Fault fault_;
    std::unique_ptr<paged::Manager> manager_;
};

int serve(paged::Fault fault) {
    std::ios::sync_with_stdio(false);
    Driver driver(fault);
    for (std::string line; std::getline(std::cin, line);) {
        std::cout << driver.answer(line);
        if (std::cin.rdbuf()->in_avail() <= 0) std::cout.flush();
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 1) return serve(paged::Fault::kNone);
    if (argc == 2 && std::strcmp(argv[1], "--list-faults") == 0) {
        for (const auto& [fault, name, says] : paged::kFaults) std::cout << name << ": " << says << '\n';
        return 0;
    }
    if (argc == 3 && std::strcmp(argv[1], "--fault") == 0)
        for (const auto& [fault, name, says] : paged::kFaults)
            if (std::strcmp(argv[2], name) == 0) return serve(fault);
    std::cerr << "usage: " << argv[0] << " [--fault NAME | --list-faults]\n";
    return 2;
}
