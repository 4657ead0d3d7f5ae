// A small KV-cache manager: blocks of one size with reference counts, block tables, a prefix cache, copy-on-write. What a
// cell contains is a number, a tag, which stands for keys and values.
//
// Each Fault is a mistake that such managers have had, at the one place where it is made.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace paged {

// A call that makes no sense; nothing has changed.
struct Misuse : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void check(bool legal, const std::string& what) {
    if (!legal) throw Misuse(what);
}

enum class Fault {
    kNone, kLeak, kDoubleFree, kFreePadding, kEvictUsed, kKeepKey, kPublishEarly, kShortKey, kIgnoreContext, kNoCopy,
    kCopyNothing, kWrongCount, kLongHit, kRefuseEarly, kHalfRefusal, kEvictMiscounted, kKeepComputed, kFlatRead,
    kNoReset, kForgive, kCrash, kHang,
};

struct FaultName {
    Fault fault;
    const char* name;
    const char* says;
};

inline constexpr FaultName kFaults[] = {
    {Fault::kLeak, "leak", "a reference to a block that others hold is never given back"},
    {Fault::kDoubleFree, "double-free", "a block goes to the free list twice"},
    {Fault::kFreePadding, "free-padding", "the padding block is in the free list"},
    {Fault::kEvictUsed, "evict-used", "a block that a sequence holds is evicted and handed out"},
    {Fault::kKeepKey, "keep-key", "a block that is evicted keeps its key"},
    {Fault::kPublishEarly, "publish-early", "a block is published before it is full"},
    {Fault::kShortKey, "short-key", "a key leaves out what stands before the block"},
    {Fault::kIgnoreContext, "ignore-context", "a key leaves out the adapter, the salt and the images"},
    {Fault::kNoCopy, "no-copy", "a shared block is written without a copy"},
    {Fault::kCopyNothing, "copy-nothing", "a copied block is left as it was"},
    {Fault::kWrongCount, "wrong-count", "the counter of used blocks counts those that only the cache holds"},
    {Fault::kLongHit, "long-hit", "a hit covers the last token, too"},
    {Fault::kRefuseEarly, "refuse-early", "room is refused that an eviction could give"},
    {Fault::kHalfRefusal, "half-refusal", "a refused call keeps the blocks that it had got by then"},
    {Fault::kEvictMiscounted, "evict-miscounted", "evict returns what was asked for, not what it did"},
    {Fault::kKeepComputed, "keep-computed", "rejected tokens still count as computed"},
    {Fault::kFlatRead, "flat-read", "blocks are read as if they stood one behind the other"},
    {Fault::kNoReset, "no-reset", "a reset says that it is done, and does nothing"},
    {Fault::kForgive, "forgive", "a handle can be given back twice"},
    {Fault::kCrash, "crash", "a preemption dereferences a null pointer"},
    {Fault::kHang, "hang", "a truncation does not return"},
};

// A key: a chained hash of 128 bits, as hexadecimal text.
class Hash {
public:
    void add(std::int64_t number) {
        high_ = mixed(high_ ^ static_cast<std::uint64_t>(number));
        low_ = mixed(low_ + 0x9E3779B97F4A7C15u * (static_cast<std::uint64_t>(number) | 1) + high_);
    }

    void add(std::string_view text) {
        add(static_cast<std::int64_t>(text.size()));
        for (const char c : text) add(static_cast<std::int64_t>(c));
    }

    std::string text() const {
        std::string found;
        for (const std::uint64_t part : {high_, low_})
            for (int shift = 60; shift >= 0; shift -= 4) found += "0123456789abcdef"[part >> shift & 15];
        return found;
    }

private:
    static std::uint64_t mixed(std::uint64_t x) {  // splitmix64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
        x = (x ^ x >> 27) * 0x94D049BB133111EBu;
        return x ^ x >> 31;
    }

    std::uint64_t high_ = 0x243F6A8885A308D3u, low_ = 0x13198A2E03707344u;
};

struct Event {
    bool stored;  // or removed
    std::string key;
    int block;
};

class Manager {
public:
    Manager(std::int64_t num_blocks, std::int64_t block_size, bool caching, Fault fault)
        : size_(block_size), caching_(caching), fault_(fault), blocks_(static_cast<std::size_t>(num_blocks)) {
        for (int block = static_cast<int>(num_blocks) - 1; block > (fault == Fault::kFreePadding ? -1 : 0); --block)
            free_.push_back(block);
        for (Block& block : blocks_) block.cells.resize(static_cast<std::size_t>(block_size));
    }

    // -- operations -----------------------------------------------------------------------------------------------

    void start(const std::string& name, std::vector<std::int64_t> tokens, const std::string& context) {
        check(!sequences_.count(name), name + " exists");
        check_tokens(tokens);
        Sequence& seq = sequences_[name];
        seq.tokens = std::move(tokens);
        if (fault_ != Fault::kIgnoreContext) seq.root.add(context);
    }

    void append(const std::string& name, const std::vector<std::int64_t>& tokens) {
        Sequence& seq = sequence(name);
        check_tokens(tokens);
        seq.tokens.insert(seq.tokens.end(), tokens.begin(), tokens.end());
    }

    // The longest published prefix, short of the last token, which is left to compute.
    std::int64_t allocate_shared(const std::string& name) {
        Sequence& seq = sequence(name);
        check(seq.table.empty(), name + " has blocks");
        const std::int64_t known = static_cast<std::int64_t>(seq.tokens.size());
        const std::int64_t most = (fault_ == Fault::kLongHit ? known : std::max<std::int64_t>(known - 1, 0)) / size_;
        for (std::int64_t index = 0; index < most; ++index) {
            const auto found = cached_.find(key(seq, index));
            if (found == cached_.end()) break;
            use(found->second);
            seq.table.push_back(found->second);
        }
        seq.computed = static_cast<std::int64_t>(seq.table.size()) * size_;
        return seq.computed;
    }

    // Room for the first num_tokens tokens, in blocks that nobody else holds where they are written: all or nothing.
    bool allocate(const std::string& name, std::int64_t num_tokens) {
        Sequence& seq = sequence(name);
        check_known(seq, num_tokens);
        const auto shared = fault_ == Fault::kNoCopy ? std::vector<std::size_t>{} : shared_places(seq, num_tokens);
        const std::size_t wanted = std::max(blocks_for(num_tokens), seq.table.size());
        const std::size_t need = wanted - seq.table.size() + shared.size();
        if (need > room()) {
            if (fault_ == Fault::kHalfRefusal)
                while (room() > 0) seq.table.push_back(take());
            return false;
        }
        for (const std::size_t place : shared) {
            const int copy = take();
            if (fault_ != Fault::kCopyNothing) at(copy).cells = at(seq.table[place]).cells;
            leave(seq.table[place]);
            seq.table[place] = copy;
        }
        while (seq.table.size() < wanted) seq.table.push_back(take());
        return true;
    }

    // One step: all of the batch is checked, then all of it is written.
    void write(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& batch) {
        std::set<std::string> named;
        for (const auto& [name, tags] : batch) {
            const Sequence& seq = sequence(name);
            const std::int64_t end = seq.computed + static_cast<std::int64_t>(tags.size());
            check(named.insert(name).second, name + " is named twice");
            check(end <= static_cast<std::int64_t>(std::min(seq.tokens.size(), seq.table.size() * size())),
                  "no room for " + std::to_string(end) + " tokens of " + name);
            check(fault_ == Fault::kNoCopy || shared_places(seq, end).empty(), name + " would write what others hold");
        }
        for (const auto& [name, tags] : batch) {
            Sequence& seq = sequence(name);
            for (const std::int64_t tag : tags) cell(seq, seq.computed++) = tag;
        }
    }

    std::vector<std::int64_t> read(const std::string& name, std::int64_t start, std::int64_t stop) {
        const Sequence& seq = sequence(name);
        check(0 <= start && start <= stop && stop <= seq.computed, name + " has no such computed tokens");
        std::vector<std::int64_t> tags;
        for (std::int64_t token = start; token < stop; ++token) {
            const int flat = seq.table[0] + static_cast<int>(token / size_);
            const bool is_flat = fault_ == Fault::kFlatRead && flat < static_cast<int>(blocks_.size());
            tags.push_back(is_flat ? at(flat).cells[static_cast<std::size_t>(token % size_)] : cell(seq, token));
        }
        return tags;
    }

    void cache(const std::string& name) { publish(sequence(name)); }

    void deallocate(const std::string& name) {
        publish(sequence(name));
        abort(name);
    }

    void preempt(const std::string& name) {
        Sequence& seq = sequence(name);
        if (fault_ == Fault::kCrash && !seq.table.empty()) {
            std::cerr << "reading the table of " << name << std::endl;
            std::raise(SIGSEGV);  // what a null pointer comes to, whatever the compiler makes of one
        }
        give_back(seq, 0);
        seq.computed = 0;
    }

    void abort(const std::string& name) {
        give_back(sequence(name), 0);
        sequences_.erase(name);
    }

    void fork(const std::string& parent, const std::string& child) {
        const Sequence copy = sequence(parent);
        check(!sequences_.count(child), child + " exists");
        for (const int block : copy.table) use(block);
        sequences_[child] = copy;
    }

    void truncate(const std::string& name, std::int64_t num_tokens) {
        Sequence& seq = sequence(name);
        check_known(seq, num_tokens);
        while (fault_ == Fault::kHang && num_tokens < seq.computed) std::cerr.flush();
        seq.tokens.resize(static_cast<std::size_t>(num_tokens));
        seq.keys.resize(std::min(seq.keys.size(), static_cast<std::size_t>(num_tokens / size_)));
        if (fault_ != Fault::kKeepComputed) seq.computed = std::min(seq.computed, num_tokens);
        give_back(seq, blocks_for(num_tokens));
    }

    std::int64_t evict(std::int64_t num_blocks) {
        check(num_blocks >= 0, std::to_string(num_blocks) + " blocks");
        std::int64_t evicted = 0;
        for (; evicted < num_blocks && !idle_.empty(); ++evicted) forget(idle_.begin()->second);
        return fault_ == Fault::kEvictMiscounted ? num_blocks : evicted;
    }

    bool reset() {
        while (fault_ != Fault::kNoReset && !cached_.empty()) forget(cached_.begin()->second);
        return true;
    }

    std::int64_t hold(std::int64_t block) {
        check(0 < block && block < static_cast<std::int64_t>(blocks_.size()) && at(static_cast<int>(block)).refs > 0,
              "block " + std::to_string(block) + " is not live");
        add_ref(static_cast<int>(block));
        holds_[++last_hold_] = static_cast<int>(block);
        return last_hold_;
    }

    void release(std::int64_t handle) {
        const auto found = holds_.find(handle);
        if (fault_ == Fault::kForgive && found == holds_.end()) return;
        check(found != holds_.end(), "handle " + std::to_string(handle) + " holds nothing");
        drop_ref(found->second);
        holds_.erase(found);
    }

    // -- observations ---------------------------------------------------------------------------------------------

    const std::vector<int>& block_table(const std::string& name) { return sequence(name).table; }
    std::int64_t num_computed(const std::string& name) { return sequence(name).computed; }
    const std::vector<int>& free_ids() const { return free_; }
    std::int64_t free_count() const { return static_cast<std::int64_t>(free_.size()); }
    std::int64_t used_count() const { return used_; }
    const std::map<std::string, int>& cached() const { return cached_; }
    std::vector<Event> drain_events() { return std::exchange(events_, {}); }

    std::int64_t ref_count(std::int64_t block) const {
        check(0 <= block && block < static_cast<std::int64_t>(blocks_.size()), "no such block");
        return blocks_[static_cast<std::size_t>(block)].refs;
    }

private:
    struct Block {
        int refs = 0;   // holders of all kinds: places of tables, its key, outside handles
        int users = 0;  // places of tables
        std::int64_t used_last = 0;
        std::string key;  // empty: none
        std::vector<std::int64_t> cells;
    };

    struct Sequence {
        std::vector<std::int64_t> tokens;
        std::vector<int> table;
        std::int64_t computed = 0;
        Hash root;  // of the context
        std::vector<std::pair<Hash, std::string>> keys;  // of full blocks, as far as they were needed
    };

    static void check_tokens(const std::vector<std::int64_t>& tokens) {
        for (const std::int64_t token : tokens) check(token >= 0, "a token is negative");
    }

    static void check_known(const Sequence& seq, std::int64_t num_tokens) {
        check(0 <= num_tokens && num_tokens <= static_cast<std::int64_t>(seq.tokens.size()),
              std::to_string(num_tokens) + " of " + std::to_string(seq.tokens.size()) + " tokens");
    }

    Sequence& sequence(const std::string& name) {
        const auto found = sequences_.find(name);
        check(found != sequences_.end(), name + " is unknown");
        return found->second;
    }

    Block& at(int block) { return blocks_[static_cast<std::size_t>(block)]; }
    std::size_t size() const { return static_cast<std::size_t>(size_); }
    std::size_t blocks_for(std::int64_t tokens) const { return static_cast<std::size_t>((tokens + size_ - 1) / size_); }

    std::int64_t& cell(const Sequence& seq, std::int64_t token) {
        return at(seq.table[static_cast<std::size_t>(token / size_)]).cells[static_cast<std::size_t>(token % size_)];
    }

    // Places that would be written up to token `stop`, and whose blocks others hold, too.
    std::vector<std::size_t> shared_places(const Sequence& seq, std::int64_t stop) {
        std::vector<std::size_t> places;
        const std::size_t last = std::min(blocks_for(stop), seq.table.size());
        if (stop <= seq.computed) return places;
        for (std::size_t place = static_cast<std::size_t>(seq.computed / size_); place < last; ++place)
            if (at(seq.table[place]).refs > 1) places.push_back(place);
        return places;
    }

    // The key of a full block: of its tokens, the key before it, and, in front of all, the context.
    const std::string& key(Sequence& seq, std::int64_t index) {
        while (static_cast<std::int64_t>(seq.keys.size()) <= index) {
            const bool is_first = seq.keys.empty() || fault_ == Fault::kShortKey;
            Hash hash = is_first ? seq.root : seq.keys.back().first;
            const auto first = seq.tokens.begin() + static_cast<std::ptrdiff_t>(seq.keys.size() * size());
            std::for_each(first, first + size_, [&](std::int64_t token) { hash.add(token); });
            seq.keys.emplace_back(hash, hash.text());
        }
        return seq.keys[static_cast<std::size_t>(index)].second;
    }

    void publish(Sequence& seq) {
        if (!caching_) return;
        const std::size_t room = seq.table.size() * size();
        const std::int64_t known = static_cast<std::int64_t>(std::min(seq.tokens.size(), room));
        const std::int64_t full = (fault_ == Fault::kPublishEarly ? known : seq.computed) / size_;
        for (std::int64_t index = 0; index < full; ++index) {
            const int block = seq.table[static_cast<std::size_t>(index)];
            if (!cached_.emplace(key(seq, index), block).second) continue;
            at(block).key = key(seq, index);
            add_ref(block);
            events_.push_back({true, at(block).key, block});
        }
    }

    // A key ends, and with it its hold on the block.
    void forget(int block) {
        Block& idle = at(block);
        cached_.erase(idle.key);
        events_.push_back({false, idle.key, block});
        set_idle(block, false);
        idle.key.clear();
        drop_ref(block);
    }

    // How many blocks can be had.
    std::size_t room() {
        if (fault_ == Fault::kRefuseEarly) return free_.size();
        return free_.size() + idle_.size() + (fault_ == Fault::kEvictUsed ? used_and_cached().size() : 0);
    }

    std::vector<int> used_and_cached() {
        std::vector<int> found;
        for (const auto& [key, block] : cached_)
            if (at(block).users == 1 && at(block).refs == 2) found.push_back(block);
        return found;
    }

    // A block for a table: a free one, or that of the key that was used longest ago.
    int take() {
        int block = 0;
        if (free_.empty() && idle_.empty() && fault_ == Fault::kEvictUsed) {
            block = used_and_cached().front();
            forget(block);
            at(block).refs = at(block).users = 0;
            --used_;
        } else if (free_.empty() && fault_ == Fault::kKeepKey) {
            block = idle_.begin()->second;
            set_idle(block, false);
            at(block).refs = 0;
        } else {
            if (free_.empty()) forget(idle_.begin()->second);
            block = free_.back();
            free_.pop_back();
        }
        use(block);
        return block;
    }

    void use(int block) {
        if (at(block).users++ == 0) ++used_;
        add_ref(block);
    }

    void leave(int block) {
        const bool counted = fault_ != Fault::kWrongCount || at(block).refs == 1;
        if (--at(block).users == 0 && counted) --used_;
        if (fault_ != Fault::kLeak || at(block).refs == 1) drop_ref(block);
    }

    void give_back(Sequence& seq, std::size_t keep) {
        for (; seq.table.size() > keep; seq.table.pop_back()) leave(seq.table.back());
    }

    void add_ref(int block) {
        set_idle(block, false);
        ++at(block).refs;
        set_idle(block, at(block).refs == 1 && !at(block).key.empty());
    }

    void drop_ref(int block) {
        if (--at(block).refs == 0) {
            free_.push_back(block);
            if (fault_ == Fault::kDoubleFree) free_.push_back(block);
        }
        set_idle(block, at(block).refs == 1 && !at(block).key.empty());
    }

    // Whether only its key holds it.
    void set_idle(int block, bool is_idle) {
        idle_.erase({at(block).used_last, block});
        if (!is_idle) return;
        at(block).used_last = ++clock_;
        idle_.insert({at(block).used_last, block});
    }

    std::int64_t size_;
    bool caching_;
    Fault fault_;
    std::vector<Block> blocks_;
    std::vector<int> free_;
    std::set<std::pair<std::int64_t, int>> idle_;  // the one that was used longest ago first
    std::map<std::string, int> cached_;
    std::map<std::string, Sequence> sequences_;
    std::map<std::int64_t, int> holds_;
    std::vector<Event> events_;
    std::int64_t used_ = 0, clock_ = 0, last_hold_ = 0;
};

}  // namespace paged
