// Keys in order, each once: what Python's OrderedDict is to vLLM's cache policies.
#pragma once

#include <cstddef>
#include <list>
#include <unordered_map>

#include "base/types.h"

namespace llmsim {

class KeyList {
 public:
  using Place = std::list<Key>::const_iterator;

  bool contains(Key key) const { return places_.contains(key); }
  std::size_t size() const { return places_.size(); }
  Key front() const { return keys_.front(); }
  Place begin() const { return keys_.begin(); }
  Place end() const { return keys_.end(); }
  // Behind all others, also where it is there already.
  void push_back(Key key) {
    erase(key);
    places_[key] = keys_.insert(keys_.end(), key);
  }
  bool erase(Key key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return false;
    keys_.erase(found->second);
    places_.erase(found);
    return true;
  }
  void pop_front() { erase(Key{keys_.front()}); }

 private:
  std::list<Key> keys_;
  std::unordered_map<Key, std::list<Key>::iterator> places_;
};

}  // namespace llmsim
